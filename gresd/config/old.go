// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"
)

// oldKey is a key of version 0.10 that version 1 removed or renamed. A file that has it still loads,
// with a warning.
type oldKey struct {
	key    string
	remedy string // what happens without the key, and what to do; "" if another key replaces it
	new    string // the key that replaces it
	word   string // true adds this word to the list new, or sets new to the word; "": new takes the value
}

// oldKeys are applied in this order.
var oldKeys = []oldKey{
	{key: "placement.mode", new: "placement.by"},
	{key: "limits.allow_off", new: "limits.modes", word: "off"},
	{key: "mps.enabled", new: "mps.engines", word: "mps"},
	{key: "mps.concurrent", new: "mps.engines", word: "concurrent"},
	{key: "mps.default", new: "mps.default_engine", word: "mps"},
	{key: "mps.auto", new: "mps.default_engine", word: "auto"},
	{key: "mps.control", remedy: "gresd finds nvidia-cuda-mps-control in its PATH; if it is elsewhere, set PATH with: systemctl edit gresd"},
	{key: "cuda.library", remedy: "gresd loads libcuda.so.1 from the folder of nvml.library; set that key if the loader does not find the driver"},
	{key: "memory.context_mib", remedy: "gresd measures what a context costs"},
	{key: "memory.uncounted_mib", remedy: "gresd measures what a context costs"},
	{key: "arbiter.engine", remedy: "gresd sets time slices, and uses exclusive windows on cards that refuse or ignore them"},
	{key: "arbiter.period_us", remedy: "the period is 20 ms"},
	{key: "arbiter.max_period_us", remedy: "the longest period is 50 ms"},
	{key: "arbiter.min_slice_us", remedy: "the shortest slice is 0.5 ms"},
	{key: "arbiter.tick_ms", remedy: "gresd polls the jobs every 50 ms"},
	{key: "health.probe_s", remedy: "gresd probes each card every 5 s; set health.clean_probes to change how long a card must be well"},
	{key: "slurm.timeout_s", remedy: "a command of Slurm may take 10 s"},
	{key: "audit.grace_s", remedy: "a process must break a rule for 5 s"},
	{key: "audit.tolerance_mib", remedy: "a job may exceed its memory limit by 64 MiB before the audit acts"},
}

// oldNames are the old keys that a key replaces.
func oldNames(key string) (names []string) {
	for _, o := range oldKeys {
		if o.new == key {
			names = append(names, o.key)
		}
	}
	return names
}

// replaceOldKeys puts the keys of this version in place of old ones. below are the files that the
// file overrides. A key of this version in the same file takes precedence.
func (s source) replaceOldKeys(below map[string]any) (warnings []string, err error) {
	given := map[string]bool{}
	for _, o := range oldKeys {
		_, given[o.new] = lookup(s.document, o.new)
	}
	var found []oldKey
	var wrong []error
	for _, o := range oldKeys {
		value, is := lookup(s.document, o.key)
		if !is {
			continue
		}
		name, leaf := split(o.key)
		table := s.document[name].(map[string]any)
		delete(table, leaf)
		found = append(found, o)
		if o.new == "" || given[o.new] {
			continue
		}
		if o.word != "" {
			on, isBool := value.(bool)
			if !isBool {
				wrong = append(wrong, &KeyError{Key: o.key, What: show(value) + ": want true or false"})
				continue
			}
			value = o.apply(on, current(o.new, s.document, below))
		}
		_, leaf = split(o.new)
		table[leaf] = value
	}
	for _, o := range found {
		what := "version 1 has no such key: delete it; " + o.remedy
		if o.new != "" {
			_, name := split(o.new)
			value, _ := lookup(s.document, o.new)
			what = fmt.Sprintf("old key: want %s = %s", name, show(value))
		}
		warnings = append(warnings, (&KeyError{File: s.file, Line: line(s.text, o.key), Key: o.key, What: what}).Error())
	}
	if table, is := s.document["cuda"].(map[string]any); is && len(table) == 0 {
		delete(s.document, "cuda")
	}
	return warnings, errors.Join(wrong...)
}

// apply returns the value of the new key, of which now is the value so far.
func (o oldKey) apply(on bool, now any) any {
	list, isList := now.([]any)
	switch {
	case isList && on && !slices.Contains(list, any(o.word)):
		return append(slices.Clone(list), o.word)
	case isList && !on:
		return slices.DeleteFunc(slices.Clone(list), func(word any) bool { return word == any(o.word) })
	case !isList && on:
		return o.word
	case !isList && now == any(o.word):
		return "time"
	}
	return now
}

// current returns the value of a key that the first document with this key has, or its default.
func current(key string, documents ...map[string]any) any {
	for _, document := range documents {
		if value, given := lookup(document, key); given {
			return value
		}
	}
	return map[string]any{"limits.modes": []any{"hard", "soft"}, "mps.engines": []any{}, "mps.default_engine": "time"}[key]
}

// lookup returns the value of a key with one dot.
func lookup(document map[string]any, key string) (value any, given bool) {
	table, name := split(key)
	values, _ := document[table].(map[string]any)
	value, given = values[name]
	return value, given
}
