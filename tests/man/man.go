// SPDX-License-Identifier: Apache-2.0

// Package man makes the manual pages. The text of a page is in docs/man/PAGE.md.
// Its commands, options and keys come from the program. The tests of the
// programs call [Check], which fails if a page is older than its program.
// make man rewrites the pages.
//
// A page uses this Markdown: "# SECTION", "## Part", paragraphs, code (four
// spaces), **bold**, *italic*, `code`, and definitions. A definition is a line
// with the term, then lines that begin with ":   " or four spaces.
package man

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// UpdateEnv set to anything makes [Check] write the pages.
const UpdateEnv = "VGPU_UPDATE_MAN"

// Check compares docs/man/PAGE, such as "gresd.8", with the output of [Render]
// for its text and the parts. A line {{name}} of the text stands for parts["name"].
func Check(t *testing.T, page string, parts map[string]string) {
	t.Helper()
	_, here, _, _ := runtime.Caller(0)
	if !filepath.IsAbs(here) { // built with -trimpath
		t.Fatal("want a build that knows its folder: without -trimpath")
	}
	path := filepath.Join(filepath.Dir(here), "../../docs/man", page)
	text, err := os.ReadFile(path + ".md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Render(page, string(text), parts)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv(UpdateEnv) != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || string(have) != want {
		t.Errorf("docs/man/%s is not what its program says: run make man (%v)", page, err)
	}
}

// Render writes a page in roff. An error names what of text and parts does not
// go together.
func Render(page, text string, parts map[string]string) (string, error) {
	name, section, ok := strings.Cut(page, ".")
	if i := strings.LastIndexByte(page, '.'); i >= 0 {
		name, section = page[:i], page[i+1:]
	}
	if !ok {
		return "", fmt.Errorf("page %q: want a name and a section, for example gresd.8", page)
	}
	used := map[string]bool{}
	var whole strings.Builder
	for line := range strings.Lines(text) {
		placeholder, isPart := strings.CutPrefix(strings.TrimSpace(line), "{{")
		if !isPart {
			whole.WriteString(line)
			continue
		}
		placeholder = strings.TrimSuffix(placeholder, "}}")
		part, known := parts[placeholder]
		if !known {
			return "", fmt.Errorf("page %s: {{%s}}: no such part", page, placeholder)
		}
		used[placeholder] = true
		whole.WriteString(part)
	}
	for part := range parts {
		if !used[part] {
			return "", fmt.Errorf("page %s: nothing says {{%s}}", page, part)
		}
	}
	var w writer
	w.line(`.\" SPDX-License-Identifier: Apache-2.0`)
	w.line(fmt.Sprintf(`.\" Made by make man from docs/man/%s.md and the program: change those.`, page))
	w.line(fmt.Sprintf(`.TH %s %s "" slurm-vgpu`, strings.ToUpper(name), section))
	w.markdown(whole.String())
	return w.out.String(), nil
}

// writer turns lines of Markdown into roff.
type writer struct {
	out  strings.Builder
	code bool // in a block of code
	open bool // in a paragraph or definition
}

func (w *writer) line(s string) {
	w.out.WriteString(s)
	w.out.WriteByte('\n')
}

func (w *writer) endCode() {
	if w.code {
		w.line(".EE")
		w.line(".RE")
		w.code = false
	}
}

func (w *writer) markdown(text string) {
	lines := strings.Split(text, "\n")
	definition := false
	for i, line := range lines {
		rest, indented := strings.CutPrefix(line, "    ")
		next := ""
		if i+1 < len(lines) {
			next = lines[i+1]
		}
		switch {
		case strings.HasPrefix(line, "<!--"):
		case strings.TrimSpace(line) == "":
			// Code goes on after an empty line; a definition may too.
			if !w.code || !strings.HasPrefix(next, "    ") {
				w.endCode()
				w.open = false
				definition = definition && strings.HasPrefix(next, "    ")
			} else {
				w.line("")
			}
		case indented && definition && !w.open && !w.code:
			w.line(".IP")
			w.open = true
			w.line(inline(rest))
		case indented && definition && !w.code:
			w.line(inline(rest))
		case indented:
			if !w.code {
				w.line(".PP")
				w.line(".RS 4")
				w.line(".EX")
				w.code = true
			}
			w.line(escape(rest))
		default:
			w.endCode()
			definition = w.plain(line, next) || definition && strings.HasPrefix(line, ":   ")
		}
	}
	w.endCode()
}

// plain writes a line that is neither empty nor code, and reports whether it is
// the term of a definition.
func (w *writer) plain(line, next string) bool {
	switch {
	case strings.HasPrefix(line, "## "):
		w.line(".SS " + inline(line[3:]))
	case strings.HasPrefix(line, "# "):
		w.line(".SH " + inline(line[2:]))
	case strings.HasPrefix(line, ":   "):
		w.line(inline(line[4:]))
		w.open = true
	case strings.HasPrefix(next, ":   "):
		w.line(".TP")
		w.line(inline(line))
		return true
	default:
		if !w.open {
			w.line(".PP")
			w.open = true
		}
		w.line(inline(line))
	}
	return false
}

// inline sets bold, italic and code in the fonts of manual pages.
func inline(s string) string {
	for _, mark := range []struct{ sign, font string }{{"**", "B"}, {"`", "B"}, {"*", "I"}} {
		var out strings.Builder
		for i, piece := range strings.Split(s, mark.sign) {
			if i > 0 {
				out.WriteString(map[bool]string{true: "\x00" + mark.font, false: "\x00R"}[i%2 == 1])
			}
			out.WriteString(piece)
		}
		if strings.Count(s, mark.sign)%2 == 0 { // a sign alone is itself
			s = out.String()
		}
	}
	return strings.ReplaceAll(escape(s), "\x00", `\f`)
}

// escape prevents roff from reading text as a request, and from replacing hyphens
// by a character that a shell does not accept.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "^", `\(ha`, "~", `\(ti`, "…", "...").Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
