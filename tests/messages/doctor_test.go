// SPDX-License-Identifier: Apache-2.0

package messages

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of doctor's findings anew")

const (
	findingsHead = "| line | finding | do |\n|---|---|---|\n"
	doctorFolder = "../../gresd/doctor"
)

// ofGresConf is the remedy of what differs between gres.conf and the cards, which the caller adds.
const ofGresConf = "gresd gres-conf prints what belongs there; then restart slurmd, slurmctld, slurmd, in this order (INSTALL.md, step 4)"

// finding is one thing that doctor can say, with "…" for each value.
type finding struct{ check, message, remedy string }

// Doctor and the page have the same findings, with the same remedies.
func TestDoctorsFindingsAreListed(t *testing.T) {
	found := findings(t)
	if len(found) < 50 {
		t.Fatalf("only %d findings in %s", len(found), doctorFolder)
	}
	var want strings.Builder
	want.WriteString(findingsHead)
	for _, f := range found {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", f.check, cell(f.message), cell(f.remedy))
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, there := strings.Cut(string(text), findingsHead)
	if !there {
		t.Fatalf("%s: want a table %q", page, findingsHead)
	}
	end := strings.Index(rest, "\n\n") + 1
	if findingsHead+rest[:end] == want.String() {
		return
	}
	if !*update {
		t.Fatalf("%s has other findings than doctor; go test ./tests/messages -update writes:\n%s", page, want.String())
	}
	if err := os.WriteFile(page, []byte(before+want.String()+rest[end:]), 0o644); err != nil {
		t.Fatal(err)
	}
}

// cell is a text in a table.
func cell(text string) string {
	if strings.Trim(text, "…: ") == "" {
		return "a message of the system, of Slurm or of gresd"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}

// findings are those of doctor's source: tell(Fail, message, remedy), say(…) and their like.
func findings(t *testing.T) (all []finding) {
	t.Helper()
	set := token.NewFileSet()
	paths, err := filepath.Glob(doctorFolder + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"checkNode": "slurm", "checkSettings": "slurm", "compareGres": "gres.conf", "judgeUnknown": "library", "judgeRun": "space", "judgeState": "space"}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		ast.Inspect(file, func(n ast.Node) bool { // {"config", false, checkConfig}
			if lit, is := n.(*ast.CompositeLit); is && len(lit.Elts) == 3 {
				if does, is := lit.Elts[2].(*ast.Ident); is {
					names[does.Name], _ = quotedText(lit.Elts[0])
				}
			}
			return true
		})
	}
	for _, file := range files {
		for _, decl := range file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && f.Body != nil {
				name := names[f.Name.Name]
				if rest, is := strings.CutPrefix(f.Name.Name, "judge"); is && name == "" {
					name = strings.ToLower(rest)
				}
				all = append(all, inFunction(f, name)...)
			}
		}
	}
	order := map[string]int{}
	for i, f := range all {
		order[f.check] = cmp.Or(order[f.check], i+1)
	}
	slices.SortStableFunc(all, func(a, b finding) int { return order[a.check] - order[b.check] })
	seen := map[finding]bool{}
	return slices.DeleteFunc(all, func(f finding) bool {
		again := seen[f]
		seen[f] = true
		return again
	})
}

// inFunction finds the triples of a status that is not Pass or Skip, a message and a remedy.
func inFunction(f *ast.FuncDecl, check string) (found []finding) {
	constants := map[string]string{}
	add := func(message, remedy ast.Expr) {
		f := finding{check, words(message, constants), words(remedy, constants)}
		if f.message != "…" || f.remedy != "…" { // else it passes on what another function has found
			found = append(found, f)
		}
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		var of []ast.Expr
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, v := range n.Values {
				if text, is := quotedText(v); is {
					constants[n.Names[i].Name] = text
				}
			}
		case *ast.CallExpr:
			name, _ := n.Fun.(*ast.Ident)
			switch {
			case name == nil:
			case name.Name == "append" && f.Name.Name == "compareGres" && words(n.Args[0], nil) == "…" && len(n.Args) == 2:
				if list, is := n.Args[0].(*ast.Ident); is && list.Name == "wrong" {
					add(n.Args[1], &ast.BasicLit{Kind: token.STRING, Value: strconv.Quote(ofGresConf)})
				}
			case name.Name == "say" && len(n.Args) == 2:
				add(n.Args[0], n.Args[1])
			case name.Name == "say" || name.Name == "tell":
				of = n.Args
			}
		case *ast.ReturnStmt:
			of = n.Results
		}
		if len(of) == 3 {
			if status, is := of[0].(*ast.Ident); is && status.Name != "Pass" && status.Name != "Skip" && status.Name != "nil" {
				add(of[1], of[2])
			}
		}
		return true
	})
	return found
}

func quotedText(e ast.Expr) (string, bool) {
	lit, is := e.(*ast.BasicLit)
	if !is || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// words is the text that an expression makes, with "…" for what is known later.
func words(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, is := quotedText(e); is {
			return text
		}
	case *ast.Ident:
		if text, is := constants[e.Name]; is {
			return text
		}
	case *ast.BinaryExpr:
		return strings.ReplaceAll(words(e.X, constants)+words(e.Y, constants), "……", "…")
	case *ast.CallExpr:
		if f, is := e.Fun.(*ast.SelectorExpr); is && f.Sel.Name == "Sprintf" {
			if text, is := quotedText(e.Args[0]); is {
				return plain(text)
			}
		}
	}
	return "…"
}
