// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

//go:embed report.html
var reportHTML string

var reportPage = template.Must(template.New("report").Funcs(template.FuncMap{
	"ratio": ratio,
	// width is that of a bar of 100.
	"width": func(part float64) string { return fmt.Sprintf("%.1f", 100*min(max(part, 0), 1)) },
}).Parse(reportHTML))

// writePage writes one file without anything from elsewhere.
func writePage(w io.Writer, reports []wire.Report) error {
	var views []jobReport
	for _, r := range reports {
		views = append(views, readReport(r))
	}
	return reportPage.Execute(w, views)
}
