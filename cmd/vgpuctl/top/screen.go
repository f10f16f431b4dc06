// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// Options of [Run].
type Options struct {
	Every time.Duration                           // between two samples
	Ask   func(context.Context) ([]Sample, error) // one sample of each node
	Color bool
}

// Run shows the view until the user quits or ctx is done. The terminal is as it
// was when it returns.
func Run(ctx context.Context, v *View, o Options) error {
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return fmt.Errorf("terminal: %w; vgpuctl top --once needs none", err)
	}
	defer screen.Fini()

	events, quit := make(chan tcell.Event, 16), make(chan struct{})
	defer close(quit)
	go screen.ChannelEvents(events, quit)

	// A gresd that does not answer must not stop the keys.
	ctx, cancel := context.WithCancel(ctx)
	answers, asked := make(chan func()), make(chan struct{})
	go func() {
		defer close(asked)
		for {
			samples, err := o.Ask(ctx)
			answer := func() { v.Add(samples...) }
			if err != nil {
				answer = func() { v.Problem = err.Error() }
			}
			select {
			case <-ctx.Done():
				return
			case answers <- answer:
			}
			if !wakeup.Wait(ctx, o.Every) {
				return
			}
		}
	}()
	defer func() {
		cancel()
		<-asked // nobody asks any more when it returns
	}()

	for {
		show(screen, v, o.Color)
		select {
		case <-ctx.Done():
			return nil
		case answer := <-answers:
			answer()
		case event, open := <-events:
			if !open || !handle(screen, v, event) {
				return nil
			}
		}
	}
}

// handle returns false for the keys that quit.
func handle(screen tcell.Screen, v *View, event tcell.Event) bool {
	switch e := event.(type) {
	case *tcell.EventResize:
		screen.Sync()
	case *tcell.EventKey:
		_, height := screen.Size()
		switch e.Key() {
		case tcell.KeyEscape, tcell.KeyCtrlC:
			return false
		case tcell.KeyUp:
			v.Scroll(-1)
		case tcell.KeyDown:
			v.Scroll(1)
		case tcell.KeyPgUp:
			v.Scroll(-height / 2)
		case tcell.KeyPgDn:
			v.Scroll(height / 2)
		case tcell.KeyCtrlL:
			screen.Sync()
		case tcell.KeyRune:
			return v.Key(e.Rune())
		}
	}
	return true
}

// Key does what a key stands for; false: quit.
func (v *View) Key(key rune) bool {
	if key == 'r' {
		v.Reverse = !v.Reverse
	}
	for _, order := range Orders {
		if key == rune(order[0]) {
			v.Order = order
		}
	}
	return key != 'q'
}

var looks = map[Kind]tcell.Style{
	Plain:  tcell.StyleDefault,
	Dim:    tcell.StyleDefault.Dim(true),
	Strong: tcell.StyleDefault.Bold(true),
	Good:   tcell.StyleDefault.Foreground(tcell.ColorGreen),
	Warn:   tcell.StyleDefault.Foreground(tcell.ColorYellow),
	Bad:    tcell.StyleDefault.Foreground(tcell.ColorRed),
	Head:   tcell.StyleDefault.Reverse(true),
}

func show(screen tcell.Screen, v *View, color bool) {
	width, height := screen.Size()
	screen.Clear()
	for y, line := range v.Lines(width, height) {
		x := 0
		for _, s := range line {
			style := looks[s.Kind]
			if !color && s.Kind >= Good && s.Kind <= Bad {
				style = tcell.StyleDefault
			}
			for _, r := range s.Text {
				screen.SetContent(x, y, r, nil, style)
				x++
			}
		}
	}
	screen.Show()
}
