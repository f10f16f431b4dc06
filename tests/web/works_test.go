// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// The program as it is built, gresd's own messages: what changes on the node changes on the page,
// all windows together ask as often as one, and nobody asks when none looks.
func TestPageFollowsTheNode(t *testing.T) {
	g := startGresd(t, busy)
	url := startProgram(t, g)
	first := open(t, size(1440, 900, "light"), chromedp.Navigate(url))
	first.until(t, ready)
	second := open(t, size(390, 800, "dark"), chromedp.Navigate(url))
	second.until(t, ready)

	// What has the focus keeps it while the page goes on.
	first.run(t, chromedp.Focus(`#find`), chromedp.SendKeys(`#find`, "dora"))
	first.until(t, `document.querySelectorAll('#jobs-table tbody tr:not(.note)').length === 1`)
	begin := g.asked.Load()
	first.until(t, `(window.seen ??= document.querySelector('#at').textContent) !== document.querySelector('#at').textContent`)
	if n := g.asked.Load() - begin; n == 0 {
		t.Error("the page went on, and gresd was not asked")
	}
	var focused string
	first.eval(t, `document.activeElement.id + ' ' + document.activeElement.value`, &focused)
	if focused != "find dora" {
		t.Errorf("the focus is on %q", focused)
	}

	// Each of both sees each answer: 10 new ones take 10 questions, and not 20.
	count := `new Promise(done => {
		const e = new EventSource('events');
		let n = 0;
		e.addEventListener('sample', () => { if (++n === 10) { e.close(); done(n); } });
	})`
	begin = g.asked.Load()
	var n int
	first.run(t, chromedp.Evaluate(count, &n, chromedp.EvalAsValue, awaited))
	if asked := g.asked.Load() - begin; asked < 9 || asked > 12 {
		t.Errorf("3 viewers and 10 answers: gresd was asked %d times", asked)
	}

	g.play(sick)
	for _, w := range []*window{first, second} {
		w.until(t, `!document.querySelector('#problems').hidden && document.querySelector('#problems').innerText.includes('XID 79')`)
	}
	g.play(nil)
	first.until(t, `document.querySelector('#state').textContent === 'no answer: gresd is starting'`)
	g.play(empty)
	first.run(t, chromedp.Evaluate(`document.querySelector('#find').value = ''; document.querySelector('#find').dispatchEvent(new Event('input'))`, nil))
	first.until(t, ready+` && document.querySelector('#jobs').innerText.includes('No job has a share here')`)
	first.fine(t)
	second.fine(t)

	first.close(t)
	second.close(t)
	quiet(t, g)
}

// quiet waits until gresd is not asked any more for several times the interval.
func quiet(t *testing.T, g *gresd) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		before := g.asked.Load()
		time.Sleep(2 * time.Second)
		if g.asked.Load() == before {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("gresd is still asked, and nobody looks")
		}
	}
}

// A reload shows the past at once, and the address of the page alone lets nobody in.
func TestPageIsForItsUserAlone(t *testing.T) {
	url := startProgram(t, startGresd(t, busy))
	w := open(t, chromedp.Navigate(url))
	w.until(t, ready)
	var page, cookies string
	w.eval(t, `location.href`, &page)
	w.eval(t, `document.cookie`, &cookies)
	if strings.Contains(page, "token") || cookies != "" {
		t.Errorf("the address is %s and scripts see the cookies %q", page, cookies)
	}
	w.run(t, chromedp.Reload())
	w.until(t, ready)
	w.fine(t)

	// A window that has not the cookie.
	other := open(t, chromedp.Navigate(page))
	var text string
	other.eval(t, `document.body.innerText`, &text)
	if !strings.Contains(text, "open the address that vgpuctl web printed") {
		t.Errorf("without a token: %s", text)
	}
}

// By keyboard alone: skip to the jobs, sort them, open the figures of a chart, go from a bar to a job.
func TestPageByKeyboard(t *testing.T) {
	w := open(t, size(1440, 900, "light"), chromedp.Navigate(startPage(t, busy, queue)))
	w.until(t, ready)
	active := func() string {
		var text string
		w.eval(t, `document.activeElement.textContent.trim()`, &text)
		return text
	}
	// tab goes on until the focus is on something with that text.
	tab := func(want string) {
		t.Helper()
		for range 60 {
			w.run(t, chromedp.KeyEvent(kb.Tab))
			if strings.Contains(active(), want) {
				return
			}
		}
		t.Fatalf("no way to %q", want)
	}
	tab("Skip to the jobs")
	tab("job 4218 of bob")
	w.run(t, chromedp.KeyEvent(kb.Enter))
	w.until(t, `location.hash === '#job-4218' && document.querySelector(':target').innerText.includes('bob')`)
	w.run(t, chromedp.Evaluate(`document.activeElement.blur(); scrollTo(0, 0); document.querySelector('.skip').focus()`, nil))
	tab("The chart in figures")
	w.run(t, chromedp.KeyEvent(kb.Enter))
	w.until(t, `[...document.querySelectorAll('.figures-of[open] tbody tr')].map(r => r.innerText.split(/\s+/).slice(0, 2).join(' ')).join() === '4217 30,4218 50,4230 15'`)
	tab("Memory")
	w.run(t, chromedp.KeyEvent(kb.Enter))
	jobs := `[...document.querySelectorAll('#jobs-table tbody th .text')].map(e => e.textContent).join()`
	w.until(t, jobs+` === '4218,4302,4301,4217,4230'`)
	w.run(t, chromedp.KeyEvent(kb.Enter))
	w.until(t, jobs+` === '4230,4217,4301,4302,4218' && document.activeElement.closest('th').getAttribute('aria-sort') === 'ascending'`)
	w.fine(t)
}

// What a screen reader is told: tables stay tables on a phone, charts and bars have words.
func TestPageForScreenReaders(t *testing.T) {
	url := startPage(t, busy, queue)
	for _, width := range []int64{1440, 390} {
		w := open(t, size(width, 900, "light"), chromedp.Navigate(url))
		w.until(t, ready)
		// Not as cdproto's type: browsers tell reasons that it does not know.
		type value struct {
			Value any `json:"value"`
		}
		var tree struct {
			Nodes []struct {
				Ignored bool  `json:"ignored"`
				Role    value `json:"role"`
				Name    value `json:"name"`
			} `json:"nodes"`
		}
		w.run(t, chromedp.ActionFunc(func(ctx context.Context) error { return cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree) }))
		found := map[string]int{}
		var names strings.Builder
		for _, n := range tree.Nodes {
			role, _ := n.Role.Value.(string)
			name, _ := n.Name.Value.(string)
			if n.Ignored {
				continue
			}
			found[role]++
			names.WriteString(role + ": " + name + "\n")
			if name == "" && (role == "button" || role == "link" || role == "image" || role == "searchbox" || role == "table" || role == "region") {
				t.Errorf("%d: a %s has no name", width, role)
			}
		}
		for role, least := range map[string]int{"table": 2, "columnheader": 4, "rowheader": 8, "row": 10, "image": 2, "heading": 6, "status": 1, "banner": 1, "main": 1, "region": 3, "searchbox": 1} {
			if found[role] < least {
				t.Errorf("%d: %d of %s: want %d at least\n%s", width, found[role], role, least, names.String())
			}
		}
		for _, want := range []string{`link: .*job 4218 of bob: 50 %`, `image: job 4217: asked 30 %, got `, `table: Jobs with a share`, `rowheader: .*4217`, `StaticText: live`} {
			if !regexp.MustCompile(want).MatchString(names.String()) {
				t.Errorf("%d: no %q in\n%s", width, want, names.String())
			}
		}
	}
}

// Text has the contrast of WCAG AA, 4.5 to 1, in light and dark; parts of bars 3 to 1.
func TestContrast(t *testing.T) {
	for _, s := range []scene{busy, sick} {
		url := startPage(t, s, queue)
		for _, scheme := range []string{"light", "dark"} {
			w := open(t, size(1440, 900, scheme), chromedp.Navigate(url))
			w.until(t, ready)
			var found struct {
				Low    []string
				Looked int
			}
			w.eval(t, contrast, &found)
			if found.Looked < 80 || len(found.Low) > 0 {
				t.Errorf("%s: of %d: %s", scheme, found.Looked, strings.Join(found.Low, "\n"))
			}
		}
	}
}

const contrast = `(() => {
	const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
	const rgba = color => {
		canvas.clearRect(0, 0, 1, 1);
		canvas.fillStyle = color;
		canvas.fillRect(0, 0, 1, 1);
		return [...canvas.getImageData(0, 0, 1, 1).data];
	};
	const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((n, v, i) => n + v * [0.2126, 0.7152, 0.0722][i], 0);
	const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
	const ground = e => {
		for (; e; e = e.parentElement) {
			const fill = e.matches('.bar li') ? e.querySelector('.fill') : e;
			const c = rgba(getComputedStyle(fill).backgroundColor);
			if (c[3] === 255) return c;
		}
		return rgba('white');
	};
	const Low = [];
	let Looked = 0;
	const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (texts.nextNode()) {
		const e = texts.currentNode.parentElement;
		if (!texts.currentNode.data.trim() || e.closest('.sr, [hidden], script, noscript') || !e.checkVisibility()) continue;
		Looked++;
		const r = ratio(rgba(getComputedStyle(e).color), ground(e));
		if (r < 4.5) Low.push(r.toFixed(2) + ' ' + e.className + ': ' + texts.currentNode.data);
	}
	for (const fill of document.querySelectorAll('.bar .fill')) {
		Looked++;
		const r = ratio(rgba(getComputedStyle(fill).backgroundColor), rgba(getComputedStyle(fill.closest('.bar')).backgroundColor));
		if (r < 3) Low.push(r.toFixed(2) + ' a bar');
	}
	return {Low, Looked};
})()`

func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
