// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
)

// Reload returns what is in force once next replaces old in a gresd that runs:
// next, but for the keys that are read only when gresd starts, which keep their
// old values. changed are the keys with a new value, restart those that wait
// for a restart, both in the order of the file. The error says that the mixture
// makes no sense; then old stays.
func Reload(old, next Config) (inForce Config, changed, restart []string, err error) {
	var walk func(into, from reflect.Value, prefix string, fixed bool)
	walk = func(into, from reflect.Value, prefix string, fixed bool) {
		for i := range into.NumField() {
			field := into.Type().Field(i)
			name := field.Tag.Get("toml")
			if name == "-" {
				continue
			}
			fixed := fixed || field.Tag.Get("reload") == "restart"
			key, a, b := prefix+name, into.Field(i), from.Field(i)
			switch {
			case a.Kind() == reflect.Struct:
				walk(a, b, key+".", fixed)
			case reflect.DeepEqual(a.Interface(), b.Interface()):
			case fixed:
				restart = append(restart, key)
				a.Set(b)
			case a.Kind() == reflect.Map:
				changed = append(changed, changedCards(next.Cards, old.Cards)...)
			default:
				changed = append(changed, key)
			}
		}
	}
	inForce = next
	walk(reflect.ValueOf(&inForce).Elem(), reflect.ValueOf(old), "", false)
	if err := inForce.Validate(); err != nil {
		return old, nil, nil, fmt.Errorf("together with what needs a restart: %w", err)
	}
	return inForce, changed, restart, nil
}

func changedCards(next, old map[string]Card) (keys []string) {
	both := maps.Clone(next)
	maps.Copy(both, old)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		a, is := next[name]
		b, was := old[name]
		if is != was || a != b {
			keys = append(keys, "card."+name)
		}
	}
	return keys
}

// InForce is the configuration in force. All parts of gresd share one, and look into it each time
// that they need a key, so that a reload holds for all of them.
type InForce struct{ now atomic.Pointer[Config] }

// NewInForce returns one with the configuration of the start.
func NewInForce(c Config) *InForce {
	f := &InForce{}
	f.Set(c)
	return f
}

// Get returns the configuration, which must not be changed.
func (f *InForce) Get() *Config { return f.now.Load() }

// Set puts another configuration in force. After the start it must be one of [Reload].
func (f *InForce) Set(c Config) { f.now.Store(&c) }
