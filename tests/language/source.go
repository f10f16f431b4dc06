// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var (
	quoted       = regexp.MustCompile(`"(?:\\.|[^"\\\n])*"`)
	slashComment = regexp.MustCompile(`(?ms)(?:^[ \t]*//[^\n]*\n)+|//[^\n]*|/\*.*?\*/`)
	slashes      = regexp.MustCompile(`(?m)^[ \t]*(?://|/?\*+/?)[ \t]?|\*/`)
	shebang      = regexp.MustCompile(`^#!.*\b(?:ba|da)?sh\b`)
)

// readSentences returns the sentences of a file: a document's text, or the comments and messages of a
// source file. It returns nothing for other files.
func readSentences(path, text string) []string {
	base, ext := filepath.Base(path), filepath.Ext(path)
	test := strings.Contains(base, "_test.")
	var all []string
	switch ext {
	case ".md", ".tmpl":
		return sentences(prose(text))
	case ".go", ".c", ".h", ".def", ".js":
		all = sentences(slashComments(text))
	case ".lua":
		all = sentences(lineComments(text, "--"))
	case ".sh", ".toml", ".yml", ".yaml", ".conf", ".py":
		return sentences(lineComments(text, "#"))
	default:
		if base == "Makefile" || shebang.MatchString(text) {
			return sentences(lineComments(text, "#"))
		}
		return nil
	}
	if test {
		return all
	}
	messages := goStrings(text)
	if ext != ".go" {
		messages = otherStrings(text, ext)
	}
	for _, message := range messages {
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
var format = regexp.MustCompile(`"?%(\[\d+\])?[-+#0]*[\d.*]*(ll|l|z|h)?[a-zA-Z]"?`)

// goStrings returns the string literals of a Go file. The parts of a sum become one string. X stands
// for each value in it.
func goStrings(text string) (all []string) {
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil // go vet reports it
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.Field:
			n.Tag = nil
		case ast.Expr:
			s, is := goString(n)
			if is {
				all = append(all, s)
			}
			return !is
		}
		return true
	})
	return all
}

func goString(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, err := strconv.Unquote(e.Value)
			return s, err == nil
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			left, is := goString(e.X)
			right, too := goString(e.Y)
			if is && !too {
				right = "X"
			} else if too && !is {
				left = "X"
			}
			return left + right, is || too
		}
	}
	return "", false
}

// A literal is a comment, or in group 1 a string. Comments come first, so that their quotes begin no
// string.
var literals = map[string]*regexp.Regexp{
	".c":   regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])*'|("(?:\\.|[^"\\\n])*")`),
	".js":  regexp.MustCompile("(?s)//[^\n]*|/\\*.*?\\*/|('(?:\\\\.|[^'\\\\\n])*'|\"(?:\\\\.|[^\"\\\\\n])*\"|`[^`]*`)"),
	".lua": regexp.MustCompile(`--[^\n]*|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')`),
}

// joint matches the source between two parts of one string. A group is a value.
var joint = regexp.MustCompile(`^\s*(?:([A-Z]\w*)|(?:\.\.|\+)(?:\s*([\w.]+)\s*(?:\.\.|\+))?)?\s*$`)

var unescape = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\"`, `"`, `\'`, "'")

// otherStrings returns the string literals of a file that is not in Go.
func otherStrings(text, ext string) (all []string) {
	if ext == ".h" || ext == ".def" {
		ext = ".c"
	}
	end := -1
	for _, at := range literals[ext].FindAllStringSubmatchIndex(text, -1) {
		if at[2] < 0 {
			continue
		}
		part := unescape.Replace(text[at[2]+1 : at[3]-1])
		var between []string
		if end >= 0 {
			between = joint.FindStringSubmatch(text[end:at[2]])
		}
		switch {
		case between == nil:
			all = append(all, part)
		case between[1]+between[2] != "":
			all[len(all)-1] += "X" + part
		default:
			all[len(all)-1] += part
		}
		end = at[3]
	}
	return all
}
