// SPDX-License-Identifier: Apache-2.0

// Package options is the list of --vgpu options, read from the file that the
// SPANK plugin is compiled with.
package options

import (
	_ "embed"
	"fmt"
	"regexp"
	"strconv"
)

//go:embed options.def
var definition string

// Option is one --vgpu option.
type Option struct {
	Name    string // "mem" of --vgpu-mem
	Takes   string // what help calls its value: "SIZE|PCT%"
	Usage   string // what it is, for help
	Want    string // the values that it takes, for messages: "high, normal or low"
	Example string // one of them
}

// List has the options in the order of the plugin's help.
var List = read(definition)

var entry = regexp.MustCompile(`(?m)^OPTION\(\w+,\s*("[^"]*"),\s*("[^"]*"),\s*("[^"]*"),\s*\w+,\s*("[^"]*"),\s*("[^"]*")\)$`)

// read panics where the file is not of the form that it has: a test would not
// let it be built.
func read(text string) []Option {
	var list []Option
	for _, m := range entry.FindAllStringSubmatch(text, -1) {
		var words [5]string
		for i := range words {
			word, err := strconv.Unquote(m[i+1])
			if err != nil {
				panic(fmt.Sprintf("options.def: %s: %v", m[i+1], err))
			}
			words[i] = word
		}
		list = append(list, Option{
			Name: words[0], Takes: words[1], Usage: words[2], Want: words[3], Example: words[4],
		})
	}
	return list
}

// Find returns the option of that name, without --vgpu- before it.
func Find(name string) (Option, bool) {
	for _, o := range List {
		if o.Name == name {
			return o, true
		}
	}
	return Option{}, false
}
