// SPDX-License-Identifier: Apache-2.0

// Package messages finds every message that users and administrators can read,
// so that a test can hold docs/troubleshooting.md against the source.
//
// What counts as a message, by the way it is made:
//
//	Go   a text that begins with "vgpu: "; what Prolog says (h.say); a text
//	     that says what is wanted ("want …", "this site allows …") or what the
//	     audit has found; what gresd logs as a warning or an error
//	C    the formats of vgpu_because, slurm_error, vgpu_warn, vgpu_warn_once, pam_error and vgpu_log at
//	     VGPU_LOG_ERROR, and texts that begin with "vgpu: "
//	Lua  what refuse() says is wanted, and what log_user and log_error say
package messages

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Message is one text of the source.
type Message struct {
	Where string // file:line
	Text  string // with "…" for each value
}

// verb is a value in a format of Go, C or Lua.
var verb = regexp.MustCompile(`"?%(\[\d+\])?[-+#0]*[\d.*]*(ll|l|z|h)?[a-zA-Z]"?`)

// plain replaces the values of a format by "…".
func plain(format string) string {
	text := strings.ReplaceAll(format, "%%", "\x00")
	text = verb.ReplaceAllString(text, "…")
	return strings.TrimSpace(strings.ReplaceAll(text, "\x00", "%"))
}

// All finds the messages below a checkout's root.
func All(root string) ([]Message, error) {
	var all []Message
	for _, dir := range []string{"gresd", "cmd", "spank", "libvgpu", "etc/slurm"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && d.Name() == "testdata" {
					return fs.SkipDir
				}
				return err
			}
			var found []Message
			switch {
			case strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, "_test.c"), strings.HasSuffix(path, "_test.lua"):
			case filepath.Ext(path) == ".go":
				found, err = inGo(path)
			case filepath.Ext(path) == ".c", filepath.Ext(path) == ".lua":
				found, err = inText(path, callsOf[filepath.Ext(path)])
			}
			for _, m := range found {
				if m.Text = plain(m.Text); m.Text != "vgpu:" && strings.Trim(m.Text, "…: ") != "" {
					m.Where, _ = strings.CutPrefix(m.Where, root+"/")
					all = append(all, m)
				}
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// asks are the packages whose "want …" reaches users.
var asks = []string{"gresd/request/", "gresd/place/", "gresd/cards/", "gresd/server/", "spank/srun/"}

func inGo(path string) ([]Message, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var found []Message
	add := func(at ast.Node, text string) {
		found = append(found, Message{fmt.Sprintf("%s:%d", path, set.Position(at.Pos()).Line), text})
	}
	wants := slices.ContainsFunc(asks, func(dir string) bool { return strings.Contains(path, dir) })
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if text, ok := literal(first(n)); ok && isMessageCall(n) {
				add(n, text)
				return false
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Text" && strings.Contains(path, "gresd/audit/") {
				if call, ok := n.Value.(*ast.CallExpr); ok {
					if text, ok := literal(first(call)); ok {
						add(n, text)
						return false
					}
				}
			}
		case ast.Expr:
			text, ok := literal(n)
			if ok && (strings.HasPrefix(text, "vgpu: ") || wants && (strings.HasPrefix(text, "want ") || strings.HasPrefix(text, "this site allows") || strings.HasPrefix(text, "unknown option"))) {
				add(n, text)
			}
			return !ok // the halves of a sum are no messages of their own
		}
		return true
	})
	return found, nil
}

func first(call *ast.CallExpr) ast.Expr {
	if len(call.Args) == 0 {
		return nil
	}
	return call.Args[0]
}

// isMessageCall says whether the first argument of a call is a message.
func isMessageCall(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if receiver, ok := f.X.(*ast.Ident); ok && f.Sel.Name == "say" {
		return receiver.Name == "h"
	}
	if f.Sel.Name != "Warn" && f.Sel.Name != "Error" {
		return false
	}
	switch x := f.X.(type) {
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	case *ast.Ident:
		return strings.EqualFold(x.Name, "log") || x.Name == "logger"
	}
	return false
}

// literal is the text of a literal, or of a sum that has one; other parts of a
// sum are values.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, ok := literal(e.X)
		right, ok2 := literal(e.Y)
		if !ok {
			left = "%s"
		}
		if !ok2 {
			right = "%s"
		}
		return left + right, ok || ok2
	}
	return "", false
}

// callsOf are what makes messages in C and in Lua, with the name of one that
// adds "want " to them, and the text itself: literals that follow each other.
var callsOf = map[string]*regexp.Regexp{
	".c": regexp.MustCompile(`()(?:vgpu_because\(\s*[^,"]*,|slurm_error\(|vgpu_warn(?:_once)?\(|pam_error\(\s*\w+,|vgpu_log\(\s*VGPU_LOG_ERROR,|fprintf\(\s*stderr,)\s*(` +
		`(?:"(?:[^"\\]|\\.)*"\s*(?:VGPU_\w+\s*)?)+)`),
	".lua": regexp.MustCompile(`(?:(refuse)\([^"'\n]*(?:"[^"]*"|[^"'\n])*?,|log_user\((?:"%s",)?|log_error\()\s*((?:(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*(?:\.\.\s*)?)+)`),
}

var piece = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'`)

func inText(path string, calls *regexp.Regexp) ([]Message, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found []Message
	for _, at := range calls.FindAllSubmatchIndex(data, -1) {
		var text strings.Builder
		if at[3] > at[2] && at[2] >= 0 { // refuse() says that itself
			text.WriteString("want ")
		}
		for _, p := range piece.FindAllSubmatch(data[at[4]:at[5]], -1) {
			text.WriteString(strings.NewReplacer(`\n`, " ", `\"`, `"`).Replace(string(p[1]) + string(p[2])))
		}
		line := 1 + strings.Count(string(data[:at[0]]), "\n")
		found = append(found, Message{fmt.Sprintf("%s:%d", path, line), text.String()})
	}
	return found, nil
}
