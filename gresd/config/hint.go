// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"strings"
)

// keys returns every key that a file can have, dotted, in the order of Config.
func keys() []string { return keysOf(reflect.TypeFor[Config](), "") }

func keysOf(table reflect.Type, prefix string) (all []string) {
	for field := range table.Fields() {
		name := field.Tag.Get("toml")
		if name == "-" {
			continue
		}
		inner := field.Type
		if inner.Kind() == reflect.Map {
			name, inner = name+"."+AllCards, inner.Elem()
		}
		all = append(all, prefix+name)
		if inner.Kind() == reflect.Struct {
			all = append(all, keysOf(inner, prefix+name+".")...)
		}
	}
	return all
}

// hint names the nearest known key, or lists the keys of its table.
func hint(unknown string) string {
	table, leaf := split(unknown)
	if strings.HasPrefix(table, "card.") && table != "card."+AllCards {
		return strings.ReplaceAll(hint("card."+AllCards+"."+leaf), "card."+AllCards+".", table+".")
	}
	var siblings []string
	nearest, least := "", len(unknown)/3+1
	for _, key := range keys() {
		d := distance(unknown, key)
		t, name := split(key)
		if t == table {
			siblings = append(siblings, name)
		} else if name == leaf && t != "" { // the right key in a wrong table
			d = 1
		}
		if d < least {
			nearest, least = key, d
		}
	}
	if nearest != "" {
		return fmt.Sprintf(", did you mean %s?", nearest)
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
