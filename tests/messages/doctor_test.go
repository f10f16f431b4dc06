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
	"strconv"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/doctor"
)

var update = flag.Bool("update", false, "write the table of doctor's findings anew")

const findingsHead = "| line | finding | do |\n|---|---|---|\n"

// Doctor and the page have the same findings, with the same remedies.
func TestDoctorsFindingsAreListed(t *testing.T) {
	found := faultsOf(t, "../../gresd/doctor")
	if len(found) < 50 {
		t.Fatalf("only %d findings of doctor", len(found))
	}
	for _, f := range found {
		if f.Message == "" || f.Remedy == "" {
			t.Errorf("%+v: want a message and a remedy", f)
		}
	}
	var want strings.Builder
	want.WriteString(findingsHead)
	for _, f := range found {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", f.Check, cell(f.Message), cell(f.Remedy))
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

// faultsOf returns the findings in the source of doctor, in the order of the checks: the remedy of each
// check, and each call of fail and warn.
func faultsOf(t *testing.T, dir string) (all []doctor.Finding) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	values, functions := map[string]ast.Expr{}, map[string]*ast.FuncDecl{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				functions[n.Name.Name] = n
				return false
			case *ast.ValueSpec:
				for i := range n.Values {
					values[n.Names[i].Name] = n.Values[i]
				}
			}
			return true
		})
	}
	var text func(ast.Expr) string
	text = func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(e.Value)
			return s
		case *ast.BinaryExpr:
			return text(e.X) + text(e.Y)
		case *ast.Ident:
			return text(values[e.Name])
		}
		return ""
	}
	for _, element := range values["checks"].(*ast.CompositeLit).Elts {
		fields := map[string]ast.Expr{}
		for _, field := range element.(*ast.CompositeLit).Elts {
			pair := field.(*ast.KeyValueExpr)
			fields[pair.Key.(*ast.Ident).Name] = pair.Value
		}
		name, remedy := text(fields["name"]), text(fields["remedy"])
		if remedy != "" {
			all = append(all, doctor.Finding{Check: name, Status: doctor.Fail, Message: "%v", Remedy: remedy})
		}
		seen := map[string]bool{"add": true}
		var calls func(ast.Node) bool
		calls = func(n ast.Node) bool {
			call, isCall := n.(*ast.CallExpr)
			if !isCall {
				return true
			}
			of, _ := call.Fun.(*ast.SelectorExpr)
			switch {
			case of == nil:
			case of.Sel.Name == "fail" || of.Sel.Name == "warn":
				status := map[string]doctor.Status{"fail": doctor.Fail, "warn": doctor.Warn}[of.Sel.Name]
				all = append(all, doctor.Finding{Check: name, Status: status, Message: text(call.Args[2]), Remedy: cmp.Or(text(call.Args[1]), remedy)})
			case len(call.Args) > 0 && functions[of.Sel.Name] != nil && !seen[of.Sel.Name]:
				if r, is := call.Args[0].(*ast.Ident); is && r.Name == "r" { // it reports, too
					seen[of.Sel.Name] = true
					ast.Inspect(functions[of.Sel.Name], calls)
				}
			}
			return true
		}
		ast.Inspect(fields["judge"], calls)
	}
	return all
}

// cell is a format in a table, with "…" for each value.
func cell(format string) string {
	text := plain(format)
	if strings.Trim(text, "…: ") == "" {
		return "a message of the system, of Slurm or of gresd"
	}
	return strings.ReplaceAll(text, "|", `\|`)
}
