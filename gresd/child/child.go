// SPDX-License-Identifier: Apache-2.0

// Package child keeps what a program that gresd runs prints.
package child

import "bytes"

// Output keeps the head of what is written. The buffer is not embedded: io.Copy
// would find its ReadFrom, which knows no limit.
type Output struct {
	Most int // bytes
	text bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	if room := o.Most - o.text.Len(); room > 0 {
		o.text.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

func (o *Output) String() string { return o.text.String() }
