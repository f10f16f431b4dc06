// SPDX-License-Identifier: Apache-2.0

// Package web looks at the page of vgpuctl web in a real browser, Debian's chromium.
package web

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
)

// pictures is where screenshots go, to be looked at.
const pictures = "../../build/web"

// window is a tab with what went wrong in it.
type window struct {
	context.Context
	all     context.Context // the browser
	cookies cdp.BrowserContextID
	mu      sync.Mutex
	errors  []string
	hosts   map[string]bool
}

var chromium struct {
	sync.Once
	context.Context
	err error
	end []context.CancelFunc
}

// browser is chromium, started once for all tests.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium: make test-web installs it")
	}
	chromium.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
			chromedp.Flag("disable-component-update", true), chromedp.WSURLReadTimeout(2*time.Minute))
		allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
		tab, endTab := chromedp.NewContext(allocator)
		chromium.Context, chromium.end = tab, []context.CancelFunc{endTab, end}
		chromium.err = chromedp.Run(tab)
	})
	if chromium.err != nil {
		t.Fatal(chromium.err)
	}
	return chromium.Context
}

func TestMain(m *testing.M) {
	status := m.Run()
	for _, end := range chromium.end {
		end()
	}
	os.Exit(status)
}

// open opens a window without cookies. Windows beside each other are all to be seen.
func open(t *testing.T, actions ...chromedp.Action) *window {
	t.Helper()
	all := cdp.WithExecutor(browser(t), chromedp.FromContext(browser(t)).Browser)
	cookies, err := target.CreateBrowserContext().Do(all)
	var id target.ID
	if err == nil {
		id, err = target.CreateTarget("about:blank").WithBrowserContextID(cookies).WithNewWindow(true).Do(all)
	}
	if err != nil {
		t.Fatal(err)
	}
	tab, cancel := chromedp.NewContext(browser(t), chromedp.WithTargetID(id))
	t.Cleanup(cancel)
	limited, cancelTime := context.WithTimeout(tab, 10*time.Minute)
	t.Cleanup(cancelTime)
	w := &window{Context: limited, all: all, cookies: cookies, hosts: map[string]bool{}}
	chromedp.ListenTarget(limited, func(e any) {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			w.errors = append(w.errors, e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			w.errors = append(w.errors, fmt.Sprintf("console.%s: %s", e.Type, e.Args[0].Value))
		case *log.EventEntryAdded:
			w.errors = append(w.errors, e.Entry.Text+" "+e.Entry.URL)
		case *network.EventRequestWillBeSent:
			w.hosts[strings.SplitN(e.Request.URL, "/", 4)[2]] = true
		}
	})
	w.run(t, append([]chromedp.Action{log.Enable(), network.Enable()}, actions...)...)
	return w
}

func (w *window) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	if err := chromedp.Run(w.Context, actions...); err != nil {
		var text string
		_ = chromedp.Run(w.Context, chromedp.Evaluate(`document.body.innerText`, &text))
		t.Fatalf("%v; errors %q; the page says:\n%s", err, w.errors, text)
	}
}

func (w *window) close(t *testing.T) {
	t.Helper()
	if err := target.DisposeBrowserContext(w.cookies).Do(w.all); err != nil {
		t.Fatal(err)
	}
}

// fine fails the test for anything on the console, and for what was loaded from elsewhere.
func (w *window) fine(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.errors {
		t.Errorf("console: %s", e)
	}
	if len(w.hosts) != 1 {
		t.Errorf("asked %v: want this page's server alone", w.hosts)
	}
}

func (w *window) eval(t *testing.T, expression string, into any) {
	t.Helper()
	w.run(t, chromedp.Evaluate(expression, into))
}

// until waits for an expression to be true.
func (w *window) until(t *testing.T, expression string) {
	t.Helper()
	w.run(t, chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(5*time.Minute)))
}

func size(width, height int64, scheme string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		if err := emulation.SetDeviceMetricsOverride(width, height, 1, width < 500).Do(ctx); err != nil {
			return err
		}
		return emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}).Do(ctx)
	})
}

// picture takes a screenshot.
func (w *window) picture(t *testing.T, name string) {
	t.Helper()
	var png []byte
	if name[:4] == "many" {
		w.run(t, chromedp.CaptureScreenshot(&png)) // what a window shows of 200 jobs
	} else {
		w.run(t, chromedp.FullScreenshot(&png, 100))
	}
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(pictures, name+".png"), png, 0o644); err != nil {
		t.Fatal(err)
	}
}
