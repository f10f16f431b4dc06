// A module of its own: what drives the browser is no dependency of the product.
module github.com/slurm-vgpu/slurm-vgpu/tests/web

go 1.26.0

require (
	github.com/chromedp/cdproto v0.0.0-20250724212937-08a3db8b4327
	github.com/chromedp/chromedp v0.14.2
	github.com/slurm-vgpu/slurm-vgpu v0.0.0
)

require (
	github.com/chromedp/sysutil v1.1.0 // indirect
	github.com/gdamore/encoding v1.0.1 // indirect
	github.com/gdamore/tcell/v2 v2.8.1 // indirect
	github.com/go-json-experiment/json v0.0.0-20250725192818-e39067aee2d2 // indirect
	github.com/gobwas/httphead v0.1.0 // indirect
	github.com/gobwas/pool v0.2.1 // indirect
	github.com/gobwas/ws v1.4.0 // indirect
	github.com/lucasb-eyer/go-colorful v1.2.0 // indirect
	github.com/mattn/go-runewidth v0.0.16 // indirect
	github.com/rivo/uniseg v0.4.3 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.30.0 // indirect
	golang.org/x/text v0.21.0 // indirect
)

replace github.com/slurm-vgpu/slurm-vgpu => ../..
