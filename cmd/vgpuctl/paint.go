// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Values of --color.
const (
	colorAuto   = "auto"
	colorAlways = "always"
	colorNever  = "never"
)

var colorWords = []string{colorAuto, colorAlways, colorNever}

// paint adds colour to words, or does not.
type paint bool

// paint decides by --color, by NO_COLOR (any value but ""), and by what w is.
func (s *settings) paint(w io.Writer) paint {
	switch s.color {
	case colorAlways:
		return true
	case colorAuto:
		return paint(os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(w))
	}
	return false
}

func isTerminal(w io.Writer) bool {
	if columnsOf(w) > 0 {
		return true
	}
	f, is := w.(*os.File)
	return is && term.IsTerminal(int(f.Fd()))
}

func (p paint) code(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Codes of looks.
const bold, dim, red, green, yellow = "1", "2", "31", "32", "33"

var codes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// width is how many columns a text takes.
func width(text string) int { return utf8.RuneCountInString(codes.ReplaceAllString(text, "")) }

// table aligns columns. The first row is the header. If a terminal is too narrow, table omits the
// spare columns, named by their headers, one after the other. The last cell of a row needs no room
// in its column.
func table(w io.Writer, p paint, rows [][]string, spare ...string) error {
	var left []string
	lines := aligned(p, rows)
	for columns := columnsOf(w); columns > 0 && len(spare) > 0 && width(slices.MaxFunc(lines, byWidth)) > columns; spare = spare[1:] {
		if i := slices.Index(rows[0], spare[0]); i >= 0 {
			kept := make([][]string, len(rows))
			for k, row := range rows {
				kept[k] = slices.Delete(slices.Clone(row), min(i, len(row)), min(i+1, len(row)))
			}
			rows, left, lines = kept, append(left, spare[0]), aligned(p, kept)
		}
	}
	if len(left) > 0 {
		lines = append(lines, fmt.Sprintf("(a wider terminal, or --json, also shows %s)", strings.Join(left, ", ")))
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

func byWidth(a, b string) int { return cmp.Compare(width(a), width(b)) }

func aligned(p paint, rows [][]string) (lines []string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if i < len(row)-1 {
				widths[i] = max(widths[i], width(cell))
			}
		}
	}
	for r, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			blanks := max(0, widths[i]-width(cell)) + 2
			if r == 0 {
				cell = p.code(bold, cell)
			}
			line.WriteString(cell + strings.Repeat(" ", blanks))
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines
}
