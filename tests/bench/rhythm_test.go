// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestRhythmIsRead(t *testing.T) {
	b := onSim(t)
	for text, want := range map[string]string{
		"kernels=0":                  `"kernels=0": want a number from 1 to 100000`,
		"kernels=many":               `"kernels=many": want a number`,
		"kernel=0.5":                 `"kernel=0.5": want microseconds from 1 to 1000000`,
		"wait=-1":                    `"wait=-1": want a number of steps; 0: never`,
		"wait=1.5":                   `"wait=1.5": want a number of steps`,
		"ahead=65":                   `"ahead=65": want a number from 1 to 64`,
		"streams=3":                  `"streams=3": want 1 or 2`,
		"late=80":                    `"late=80": want MS/EVERY, such as 80/60`,
		"late=80/0":                  `"late=80/0": want MS/EVERY`,
		"tempo=3":                    `"tempo=3": want some of kernels=N`,
		"graph,streams=2":            "not both",
		strings.Repeat("gap=1,", 60): "longer than 255 characters",
		"kernels=2,,wait=1":          "want some of",
	} {
		p, err := b.startTenant(t.Context(), nil, tenant{shape: "rhythm:" + text})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.ready(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
			p.kill()
		}
	}
}

// Each kind of step comes to its end, and its steps are counted, in one process again and again.
func TestRhythmsPlay(t *testing.T) {
	b := onSim(t)
	for _, text := range []string{
		"kernels=10,kernel=4.5,launch=1,gap=10", "kernels=5,wait=0", "kernels=5,wait=2,ahead=2,streams=2,copy=4096",
		"kernels=7,graph,wait=3", "kernels=7,late=20/3", "kernels=1,kernel=20000,wait=0,ahead=2",
	} {
		p, err := b.startTenant(t.Context(), nil, tenant{shape: "rhythm:" + text})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.ready(); err != nil {
			t.Fatal(err)
		}
		length := 300 * time.Millisecond
		for rounds := 0; rounds < 2; {
			start := monotonic() + int64(50*time.Millisecond) // the samples begin before
			if err := p.begin(start, start+int64(length)); err != nil {
				t.Fatal(err)
			}
			o, err := p.round(length + 10*time.Second)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if o.Sent == 0 && length < 10*time.Second { // without a processor until the end of the round
				length *= 2
				continue
			}
			rounds++
			done := o.Series.At(monotonic()) - o.Series.At(0)
			if done < 1 || math.Abs(done-o.Sent) > 0.01 {
				t.Errorf("%s: %.2f steps were counted, %.0f were sent", text, done, o.Sent)
			}
		}
		p.kill()
	}
}
