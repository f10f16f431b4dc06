// SPDX-License-Identifier: Apache-2.0

package man

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestRender(t *testing.T) {
	got, err := Render("a-b.5", "# NAME\n\na-b \\- *it* is **bold**\n.dot\n\n**--x** *N*\n:   first\n    second\n\n    third\n\nText\n\n    code -x\n\n    more\n\n{{part}}\n",
		map[string]string{"part": "## Part\n\n5 * 4\n"})
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(got, ".SH")
	want := ` NAME
.PP
a\-b \e\- \fIit\fR is \fBbold\fR
\&.dot
.TP
\fB\-\-x\fR \fIN\fR
first
second
.IP
third
.PP
Text
.PP
.RS 4
.EX
code \-x

more
.EE
.RE
.SS Part
.PP
5 * 4
`
	if body != want {
		t.Errorf("got\n%s\nwant\n%s", body, want)
	}
	for text, parts := range map[string]map[string]string{
		"{{none}}\n": nil,
		"text\n":     {"part": "lost"},
	} {
		if _, err := Render("a.1", text, parts); err == nil {
			t.Errorf("%q with %v: no error", text, parts)
		}
	}
}

// groff sets every page without a warning, and man -k finds its name.
func TestPagesAreSetWithoutWarnings(t *testing.T) {
	pages, err := filepath.Glob("../../docs/man/*.[158]")
	if err != nil || len(pages) < 5 {
		t.Fatalf("%d pages, %v: want five", len(pages), err)
	}
	for _, page := range pages {
		out, err := exec.Command("groff", "-man", "-Tutf8", "-K", "utf8", "-ww", "-rLL=90n", page).CombinedOutput()
		if err != nil || strings.Contains(string(out), page+":") {
			t.Errorf("groff %s: %v\n%s", page, err, out)
		}
		text := string(out)
		name := strings.TrimSuffix(filepath.Base(page), filepath.Ext(page))
		if !strings.Contains(text, name+" - ") {
			t.Errorf("%s: NAME is not \"%s - what it is\", so man -k does not find it", page, name)
		}
	}
}
