// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// KeyError is one key or value that is wrong.
type KeyError struct {
	File string // "" from Validate
	Line int    // 0: the key is not in the file
	Key  string // "limits.max_mem"
	What string // what is wrong, what is possible, an example
}

func (e *KeyError) Error() string {
	switch {
	case e.File == "":
		return fmt.Sprintf("%s: %s", e.Key, e.What)
	case e.Line == 0:
		return fmt.Sprintf("%s: %s: %s", e.File, e.Key, e.What)
	}
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Key, e.What)
}

// Load reads and validates a file, and then the *.toml of the folder conf.d beside it, in the order
// of their names. A later file overrides an earlier one. If there is no file, Load returns [Default]
// with an empty Path. Keys that the files leave out keep their defaults; version must be there.
// Errors join one [*KeyError] for each wrong key, with file and line; other errors name the file.
func Load(path string) (Config, error) {
	all, err := readAll(path)
	if err != nil {
		return Config{}, err
	}
	if len(all) == 0 {
		return Default(), nil
	}
	c, err := all.parse()
	if err != nil {
		return Config{}, located(err, all)
	}
	if all[0].file == path {
		c.Path, all = path, all[1:]
	}
	for _, part := range all {
		c.Parts = append(c.Parts, part.file)
	}
	return c, nil
}

// source is one file that was read.
type source struct {
	file, text string
	document   map[string]any
}

// sources are the files of one configuration, what counts most last.
type sources []source

// partsDir is the folder of further files, beside the first.
const partsDir = "conf.d"

func readAll(path string) (sources, error) {
	dir := filepath.Join(filepath.Dir(path), partsDir)
	entries, err := os.ReadDir(dir) // by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	files := []string{path}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".toml") && !strings.HasPrefix(e.Name(), ".") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	var all sources
	for _, file := range files {
		data, err := os.ReadFile(file)
		if file == path && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		s := source{file: file, text: string(data)}
		if _, err := toml.Decode(s.text, &s.document); err != nil {
			return nil, located(err, sources{s})
		}
		if _, given := s.document["paths"]; given && file != path {
			return nil, located(&KeyError{Key: "paths", What: fmt.Sprintf(
				"want it in %s: Slurm's hooks read it, and no other file", path)}, sources{s})
		}
		all = append(all, s)
	}
	return all, nil
}

// merge puts one document over another, table by table.
func merge(under, over map[string]any) map[string]any {
	merged := maps.Clone(under)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range over {
		below, isTable := merged[name].(map[string]any)
		above, alsoTable := value.(map[string]any)
		if isTable && alsoTable {
			value = merge(below, above)
		}
		merged[name] = value
	}
	return merged
}

// parse puts the files together and validates the whole.
func (all sources) parse() (Config, error) {
	c := Default()
	var document map[string]any
	var wrong []error
	for _, s := range all {
		warnings, err := s.replaceOldKeys(document)
		c.Warnings = append(c.Warnings, warnings...)
		wrong = append(wrong, err)
		document = merge(document, s.document)
	}
	if _, given := document["version"]; !given {
		wrong = append(wrong, &KeyError{Key: "version", What: "want version = 1 at the head of the file"})
	}
	wrong = append(wrong, fill(reflect.ValueOf(&c).Elem(), "", document))
	// Keys first: the value of a misspelt key would be judged as its default.
	if err := errors.Join(wrong...); err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// fill sets the fields of a table. The errors are *KeyError, joined, in the order of the keys.
func fill(table reflect.Value, prefix string, values map[string]any) error {
	var wrong []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		key := prefix + name
		field := fieldOf(table, name)
		inner, isTable := values[name].(map[string]any)
		switch {
		case !field.IsValid():
			wrong = append(wrong, &KeyError{Key: key, What: "unknown key" + hint(key)})
		case field.Kind() == reflect.Struct && isTable:
			wrong = append(wrong, fill(field, key+".", inner))
		case field.Kind() == reflect.Map && isTable:
			wrong = append(wrong, fillCards(field.Interface().(map[string]Card), inner))
		case field.Kind() == reflect.Struct, field.Kind() == reflect.Map:
			wrong = append(wrong, &KeyError{Key: key, What: fmt.Sprintf("want a table, for example [%s]", key)})
		case !set(field, values[name]):
			wrong = append(wrong, &KeyError{Key: key, What: fmt.Sprintf(
				"%s: want %s, for example %s = %s", show(values[name]), kindOf(field), name, show(field.Interface()))})
		}
	}
	return errors.Join(wrong...)
}

// fillCards sets the table of each card, over a copy of the table for all cards.
func fillCards(cards map[string]Card, values map[string]any) error {
	var wrong []error
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(values)), func(name string) bool { return name == AllCards })
	for _, name := range append([]string{AllCards}, names...) {
		inner, isTable := values[name].(map[string]any)
		if _, given := values[name]; given && !isTable {
			wrong = append(wrong, &KeyError{Key: "card." + name, What: fmt.Sprintf("want a table, for example [card.%s]", AllCards)})
			continue
		}
		card := cards[AllCards]
		wrong = append(wrong, fill(reflect.ValueOf(&card).Elem(), "card."+name+".", inner))
		cards[name] = card
	}
	return errors.Join(wrong...)
}

// fieldOf returns the field of that toml name, or the zero Value.
func fieldOf(table reflect.Value, name string) reflect.Value {
	for field, value := range table.Fields() {
		if tag := field.Tag.Get("toml"); tag == name && tag != "-" {
			return value
		}
	}
	return reflect.Value{}
}

// set decodes a TOML value into a field. It returns false if the types differ.
func set(field reflect.Value, value any) bool {
	text, err := toml.Marshal(map[string]any{"v": value})
	into := reflect.New(reflect.MapOf(reflect.TypeFor[string](), field.Type()))
	if err == nil {
		_, err = toml.Decode(string(text), into.Interface())
	}
	if err != nil {
		return false
	}
	field.Set(into.Elem().MapIndex(reflect.ValueOf("v")))
	return true
}

func kindOf(field reflect.Value) string {
	switch field.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		if field.Type().Elem().Kind() != reflect.String {
			return "a list of whole numbers"
		}
		return "a list of strings"
	case reflect.Float64:
		return "a number"
	}
	return "a whole number from 0 to 4294967295"
}

// show writes a value as TOML does.
func show(v any) string {
	r := reflect.ValueOf(v)
	switch r.Kind() {
	case reflect.String:
		return fmt.Sprintf("%q", r.String())
	case reflect.Slice:
		items := make([]string, r.Len())
		for i := range items {
			items[i] = show(r.Index(i).Interface())
		}
		return "[" + strings.Join(items, ", ") + "]"
	case reflect.Map:
		return "a table"
	}
	return fmt.Sprint(v)
}

// located adds the file and the lines to the errors of parse: where a key was
// set last.
func located(err error, all sources) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var each []error
		for _, e := range joined.Unwrap() {
			each = append(each, located(e, all))
		}
		return errors.Join(each...)
	}
	first := all[0].file
	var syntax toml.ParseError
	if errors.As(err, &syntax) {
		return fmt.Errorf("%s:%d: %s", first, syntax.Position.Line, syntax.Message)
	}
	var key *KeyError
	if !errors.As(err, &key) {
		return fmt.Errorf("%s: %w", first, err)
	}
	for _, s := range slices.Backward(all) {
		for _, name := range append([]string{key.Key}, oldNames(key.Key)...) {
			if n := line(s.text, name); n != 0 {
				return &KeyError{File: s.file, Line: n, Key: key.Key, What: key.What}
			}
		}
	}
	return &KeyError{File: first, Key: key.Key, What: key.What}
}

// refuse fails on whatever value the decoder brings it.
type refuse struct{}

func (*refuse) UnmarshalTOML(any) error { return errors.New("here") }

// line returns where a key is set, 0 when it is not. The decoder tells the line
// only of a value that it could not use; so it is given a type that has just
// this key and can use no value.
func line(text, key string) int {
	shape := reflect.TypeFor[refuse]()
	names := strings.Split(key, ".")
	for _, name := range slices.Backward(names) {
		shape = reflect.StructOf([]reflect.StructField{{
			Name: "Key",
			Type: shape,
			Tag:  reflect.StructTag(fmt.Sprintf("toml:%q", name)),
		}})
	}
	_, err := toml.Decode(text, reflect.New(shape).Interface())
	var at toml.ParseError
	if errors.As(err, &at) {
		return at.Position.Line
	}
	return 0
}
