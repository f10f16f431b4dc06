// SPDX-License-Identifier: Apache-2.0

package config

import "github.com/BurntSushi/toml"

// parse reads and validates the text of one file.
func parse(text string) (Config, error) {
	s := source{text: text}
	if _, err := toml.Decode(text, &s.document); err != nil {
		return Config{}, err
	}
	return sources{s}.parse()
}
