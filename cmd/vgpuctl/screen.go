// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen is a terminal. A line that is wider is broken between words, and goes on
// below its text: nothing is cut, and no word is torn by the terminal itself.
type screen struct {
	to      io.Writer
	columns int
	part    string // of a line that has not ended
}

// onScreen returns w, or where w is a terminal, its screen.
func onScreen(w io.Writer) io.Writer {
	f, is := w.(*os.File)
	if !is || !term.IsTerminal(int(f.Fd())) {
		return w
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns < 20 {
		return w
	}
	return &screen{to: w, columns: columns}
}

// columnsOf is the width of a terminal; 0: it is none, and lines are as long as
// they are.
func columnsOf(w io.Writer) int {
	if s, is := w.(*screen); is {
		return s.columns
	}
	return 0
}

func (s *screen) Write(text []byte) (int, error) {
	lines := strings.Split(s.part+string(text), "\n")
	s.part = lines[len(lines)-1]
	for _, line := range lines[:len(lines)-1] {
		indent := len(line) - len(strings.TrimLeft(line, " ")) + 2
		if _, err := io.WriteString(s.to, fold(line, s.columns, indent)+"\n"); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}

// fold breaks a line that is wider than columns, and begins what follows with
// indent blanks. A word that has no room is broken behind a comma, else not.
func fold(line string, columns, indent int) string {
	var out strings.Builder
	for width(line) > columns {
		end, next := breakOf(line, columns, indent)
		if end == 0 {
			break
		}
		out.WriteString(strings.TrimRight(line[:end], " ") + "\n")
		line = strings.Repeat(" ", indent) + strings.TrimLeft(line[next:], " ")
	}
	return out.String() + line
}

// breakOf is where the first of the broken lines ends, and the next one begins, in
// bytes; 0 where there is no such place behind the indentation.
func breakOf(line string, columns, indent int) (end, next int) {
	comma, column, code := 0, 0, false
	for i, r := range line {
		switch {
		case r == '\x1b':
			code = true
		case code:
			code = r != 'm'
		default:
			if column > indent && r == ' ' && column <= columns {
				end, next = i, i+1
			}
			column++
			if column > indent && r == ',' && column <= columns {
				comma = i + 1
			}
		}
	}
	// Behind a comma only where the word would leave half of the line empty.
	if comma > end && width(line[:end]) < columns/2 {
		return comma, comma
	}
	return end, next
}

// fit leaves out columns of a table, by their headers in the order given, until its
// rows have room, and returns the headers that it left out.
func fit(rows [][]string, columns int, spare []string) (kept [][]string, left []string) {
	for columns > 0 && len(rows) > 0 && len(spare) > 0 && tableWidth(rows) > columns {
		kept = nil
		for i, header := range rows[0] {
			if header != spare[0] {
				continue
			}
			for _, row := range rows {
				short := append([]string{}, row[:min(i, len(row))]...)
				kept = append(kept, append(short, row[min(i+1, len(row)):]...))
			}
			left = append(left, header)
			rows = kept
			break
		}
		spare = spare[1:]
	}
	return rows, left
}

func tableWidth(rows [][]string) int {
	sum := -2
	for _, w := range widthsOf(rows) {
		sum += w + 2
	}
	return sum
}

// widthsOf are those of the columns of a table.
func widthsOf(rows [][]string) (widths []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	return widths
}

// sayLeftOut tells which columns had no room.
func sayLeftOut(w io.Writer, left []string) error {
	if len(left) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "(a wider terminal, or --json, also shows %s)\n", strings.Join(left, ", "))
	return err
}
