// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/web"
)

// ready is true once five minutes have gone by in a scene.
const ready = `document.querySelector('#main').getAttribute('aria-busy') === 'false' && document.querySelector('#state').textContent === 'live'`

// Each scene on a desk and on a phone, light and dark: what it shows, nothing on the console,
// nothing wider than the window. The pictures lie in build/web.
func TestScenes(t *testing.T) {
	for _, c := range []struct {
		name    string
		scene   scene
		waiting []web.Waiting
		says    []string
	}{
		{"empty", empty, []web.Waiting{}, []string{"No job has a share here", "0 % given", "free"}},
		{"busy", busy, queue, []string{
			"gpu17", "95 % given", "4217", "dora-with-a-long-name", "soft, to 80 %", "Its neighbors have taken much of its time for 14 s",
			"Memory above its limit was refused 3 times", "this job goes on", "1 job is throttled now", "no card has room for it now (Resources)", "a limit of its account or QOS",
		}},
		{"sick", sick, nil, []string{"out of use", "XID 79", "Problems", "not known", "<b>eve</b>", "want a size, e.g. 20G", "Slurm was not asked"}},
		{"many", many, []web.Waiting{}, []string{"200", "The 6 largest of 25 jobs", "5199"}},
		{"nodes", nodes, []web.Waiting{}, []string{"2 nodes", "gpu18: no answer within 10s", "gpu16, card 0, NVIDIA H200"}},
		{"own", own, []web.Waiting{}, []string{"2 others", "yours"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			url := startPage(t, c.scene, c.waiting)
			for _, width := range []int64{1440, 390} {
				for _, scheme := range []string{"light", "dark"} {
					if c.name == "many" && (width == 1440) != (scheme == "light") {
						continue // a browser without a card takes long to draw them
					}
					w := open(t, size(width, 900, scheme), chromedp.Navigate(url))
					w.until(t, ready+` && !document.querySelector('.card figure:not([hidden]) .chart:empty')`)
					var drawn, bytes float64
					w.eval(t, `performance.getEntriesByName('drawn')[0].startTime`, &drawn)
					w.eval(t, `performance.getEntriesByType('resource').reduce((n, e) => n + e.transferSize, 0)`, &bytes)
					t.Logf("%d, %s: drawn after %.0f ms, %.0f KiB", width, scheme, drawn, bytes/1024)
					var text string
					w.eval(t, `document.body.innerText + [...document.querySelectorAll('.bar li')].map(e => e.title).join('\n')`, &text)
					for _, want := range c.says {
						if !strings.Contains(text, want) {
							t.Errorf("%d, %s: no %q in\n%s", width, scheme, want, text)
						}
					}
					var wide int
					w.eval(t, `document.documentElement.scrollWidth - innerWidth`, &wide)
					if wide > 0 {
						t.Errorf("%d, %s: %d pixels wider than the window", width, scheme, wide)
					}
					w.picture(t, fmt.Sprintf("%s-%d-%s", c.name, width, scheme))
					w.fine(t)
					w.close(t)
				}
			}
		})
	}
}
