// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"regexp"
	"strings"
)

var (
	quoted       = re(`"(?:\\.|[^"\\\n])*"`)
	slashComment = re(`(?ms)(?:^[ \t]*//[^\n]*\n)+|//[^\n]*|/\*.*?\*/`)
	slashes      = re(`(?m)^[ \t]*(?://|/?\*+/?)[ \t]?|\*/`)
	shebang      = re(`^#!.*\b(?:ba|da)?sh\b`)
)

// readSentences returns the sentences of a file: a document's text, or the comments and messages of a
// source file. It returns nothing for other files.
func readSentences(path, text string) (all []string) {
	base, literal := filepath.Base(path), goLiteral
	switch ext := filepath.Ext(path); {
	case ext == ".md", ext == ".tmpl":
		return sentences(prose(text))
	case ext == ".go", ext == ".c", ext == ".h", ext == ".def":
		all = sentences(slashComments(text))
	case ext == ".js":
		all, literal = sentences(slashComments(text)), jsLiteral
	case ext == ".lua":
		all, literal = sentences(lineComments(text, "--")), luaLiteral
	case ext == ".sh", ext == ".toml", ext == ".yml", ext == ".yaml", ext == ".conf", ext == ".py",
		base == "Makefile", shebang.MatchString(text):
		return sentences(lineComments(text, "#"))
	default:
		return nil
	}
	if strings.Contains(base, "_test.") {
		return all
	}
	for _, message := range stringsIn(text, literal) {
		all = append(all, sentences(prose(format.ReplaceAllString(message, "X")))...)
	}
	return all
}

// slashComments returns the comments of Go, C and JavaScript.
func slashComments(text string) string {
	var all []string
	for _, comment := range slashComment.FindAllString(quoted.ReplaceAllString(text, `""`), -1) {
		all = append(all, slashes.ReplaceAllString(comment, ""))
	}
	return strings.Join(all, "\n\n")
}

// lineComments returns the lines that begin with lead, without it.
func lineComments(text, lead string) string {
	var all []string
	for line := range strings.SplitSeq(text, "\n") {
		if rest, is := strings.CutPrefix(strings.TrimSpace(line), lead); is {
			all = append(all, rest)
		}
	}
	return strings.Join(all, "\n")
}

// format matches a value in a format string of Go, C or Lua.
var format = re(`"?%(\[\d+\])?[-+#0]*[\d.*]*(ll|l|z|h)?[a-zA-Z]"?`)

// A literal is a comment, a character or, in group 1, a string.
var (
	goLiteral  = re("(?s)//[^\n]*|/\\*.*?\\*/|'(?:\\\\.|[^'\\\\\n])*'|(\"(?:\\\\.|[^\"\\\\\n])*\"|`[^`]*`)") // also C
	jsLiteral  = re("(?s)//[^\n]*|/\\*.*?\\*/|('(?:\\\\.|[^'\\\\\n])*'|\"(?:\\\\.|[^\"\\\\\n])*\"|`[^`]*`)")
	luaLiteral = re(`--[^\n]*|('(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")`)
)

// joint matches the source between two parts of one string. A group is a value.
var joint = re(`^\s*(?:([A-Z]\w*)|(?:\.\.|\+)(?:\s*([\w.]+)\s*(?:\.\.|\+))?)?\s*$`)

var unescape = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\"`, `"`, `\'`, "'")

// stringsIn returns the string literals of a source file. The parts of a sum become one string. X
// stands for each value in it.
func stringsIn(text string, literal *regexp.Regexp) (all []string) {
	end := -1
	for _, at := range literal.FindAllStringSubmatchIndex(text, -1) {
		if at[2] < 0 {
			continue
		}
		var between []string
		if end >= 0 {
			between = joint.FindStringSubmatch(text[end:at[2]])
		}
		part := unescape.Replace(text[at[2]+1 : at[3]-1])
		switch end = at[3]; {
		case between == nil:
			all = append(all, part)
		case between[1]+between[2] != "":
			all[len(all)-1] += "X" + part
		default:
			all[len(all)-1] += part
		}
	}
	return all
}
