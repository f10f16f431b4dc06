// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Tests and files that the documents name are there.
func TestNamedTestsAndFilesExist(t *testing.T) {
	all := functions(t, ".")
	test := regexp.MustCompile(`^(Test|Fuzz)[A-Z]\w+$`)
	path := regexp.MustCompile(`^(cmd|docs|etc|gresd|libvgpu|packaging|spank|tests|tools)/[\w./*-]+$`)
	tests, files := 0, 0
	for _, c := range everything(t) {
		switch {
		case c.block:
		case test.MatchString(c.text):
			tests++
			if !slices.Contains(all, c.text) {
				t.Errorf("%s:%d: %s: there is no such test", c.file, c.line, c.text)
			}
		case path.MatchString(c.text):
			files++
			// From the top, or beside the document.
			here, _ := filepath.Glob(filepath.Join(top, c.text))
			beside, _ := filepath.Glob(filepath.Join(top, filepath.Dir(c.file), c.text))
			if len(here)+len(beside) == 0 {
				t.Errorf("%s:%d: %s: there is no such file", c.file, c.line, c.text)
			}
		}
	}
	if tests < 5 || files < 25 {
		t.Errorf("%d tests, %d files: are they found?", tests, files)
	}
}

var (
	heading = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
)

// anchors are what links may name of a document, as the forges make them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	texts := documents(t)
	n := 0
	for file, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			to := file
			if target != "" {
				to = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(filepath.Join(top, to)); err != nil {
				t.Errorf("%s: %s: %v", file, m[1], err)
			} else if anchor != "" && !anchors(texts[to])[anchor] {
				t.Errorf("%s: %s: %s has no such heading", file, m[1], to)
			}
		}
	}
	if n < 50 {
		t.Errorf("%d links: are they found?", n)
	}
}

// Keys of vgpu.toml are named as the shipped file has them, and the parts of it
// that documents show can be read.
func TestKeysOfTheConfiguration(t *testing.T) {
	shipped, err := os.ReadFile(filepath.Join(top, "etc/vgpu.toml"))
	if err != nil {
		t.Fatal(err)
	}
	keys, section := map[string]bool{}, ""
	for line := range strings.Lines(string(shipped)) {
		if name, ok := strings.CutPrefix(line, "["); ok {
			section, _, _ = strings.Cut(name, "]")
			keys[section] = true
		} else if key, _, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(line, "#") {
			keys[section+" "+key] = true
		}
	}
	named := regexp.MustCompile(`^\[([a-z][a-z.]*)\](?: ([a-z_]+))?( = .*)?$`)
	parts := map[string]string{} // of a document
	n, inPart := 0, false
	for _, c := range everything(t) {
		m := named.FindStringSubmatch(c.text)
		switch {
		case !c.block && m != nil:
			n++
			if !keys[strings.TrimSpace(m[1]+" "+m[2])] {
				t.Errorf("%s:%d: %s: vgpu.toml has no such key", c.file, c.line, c.text)
			}
		case c.block && m != nil && keys[m[1]]:
			inPart = true
			parts[c.file] += c.text + "\n"
		case c.block && inPart && strings.Contains(c.text, " = "):
			parts[c.file] += c.text + "\n"
		default:
			inPart = false
		}
	}
	for file, text := range parts {
		conf := filepath.Join(t.TempDir(), "vgpu.toml")
		if err := os.WriteFile(conf, []byte("version = 1\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := says(t, "vgpuctl", "check-config", conf); code != 0 {
			t.Errorf("%s: %s\n%s", file, text, out)
		}
	}
	if n < 15 || len(parts) < 2 {
		t.Errorf("%d keys, %d parts: are they found?", n, len(parts))
	}
}

// The figures of the README's table are those that were measured.
func TestFiguresOfTheReadmeWereMeasured(t *testing.T) {
	texts := documents(t)
	n := 0
	for _, m := range regexp.MustCompile(`(\d+\.\d) / (\d+\.\d)`).FindAllStringSubmatch(texts["README.md"], -1) {
		n++
		if !strings.Contains(texts["docs/benchmarks.md"], m[1]+"/"+m[2]) {
			t.Errorf("README.md has %s: docs/benchmarks.md has no %s/%s", m[0], m[1], m[2])
		}
	}
	if n < 3 {
		t.Errorf("%d figures: are they found?", n)
	}
}
