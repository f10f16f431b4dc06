// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"strings"
)

// keys returns every key that a file can have, dotted, in the order of Config.
func keys() []string {
	var all []string
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for field := range t.Fields() {
			name := field.Tag.Get("toml")
			if name == "-" {
				continue
			}
			switch field.Type.Kind() {
			case reflect.Struct:
				all = append(all, prefix+name)
				walk(field.Type, prefix+name+".")
			case reflect.Map:
				all = append(all, prefix+name+"."+AllCards)
				walk(field.Type.Elem(), prefix+name+"."+AllCards+".")
			default:
				all = append(all, prefix+name)
			}
		}
	}
	walk(reflect.TypeFor[Config](), "")
	return all
}

// hint names the nearest known key, or lists what its table has.
func hint(unknown string) string {
	if table, leaf := split(unknown); strings.HasPrefix(table, "card.") && table != "card."+AllCards {
		return strings.ReplaceAll(hint("card."+AllCards+"."+leaf), "card."+AllCards+".", table+".")
	}
	nearest, least := "", len(unknown)/3+1
	for _, key := range keys() {
		if d := distance(unknown, key); d < least {
			nearest, least = key, d
		}
	}
	if nearest == "" {
		// The right key in a wrong table.
		_, leaf := split(unknown)
		for _, key := range keys() {
			if table, name := split(key); table != "" && distance(leaf, name) <= len(leaf)/4 {
				nearest = key
				break
			}
		}
	}
	if nearest != "" {
		return fmt.Sprintf(", did you mean %s?", nearest)
	}
	table, _ := split(unknown)
	var siblings []string
	for _, key := range keys() {
		if t, name := split(key); t == table {
			siblings = append(siblings, name)
		}
	}
	return ", want one of " + strings.Join(siblings, ", ")
}

// split returns the table and the name of a dotted key.
func split(key string) (table, name string) {
	i := strings.LastIndexByte(key, '.')
	return key[:max(i, 0)], key[i+1:]
}

// distance is the number of letters to add, drop or change (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
