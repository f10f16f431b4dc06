// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// To start scontrol costs much more than to ask slurmctld: it reads slurm.conf and
// loads plugins each time. Jobs often start many at a time, so that one scontrol is
// kept for a while which reads questions, as it does for an administrator who starts
// it without a command.
//
// A talk only saves time. Whatever it does not answer, or answers with an error, is
// asked by a command of its own.

const (
	// mostTalks is how many scontrols read questions at a time, each one question
	// after the other.
	mostTalks = 4
	// deafFor is how long none is begun after one that did not read questions.
	deafFor = time.Minute
)

// talkTimes are the times of a talk.
type talkTimes struct {
	// greeting is how long to wait for a scontrol that starts, before the question
	// is asked by a command of its own.
	greeting time.Duration
	// quiet is how long one is kept that nobody asks, and asked how long one is
	// asked at all: it knows the slurm.conf of its start.
	quiet, asked time.Duration
}

func newTalks() *talks {
	return &talks{
		byConf: map[string][]*talk{},
		times:  talkTimes{greeting: time.Second, quiet: 3 * time.Second, asked: 30 * time.Second},
	}
}

// errNoTalk says that a command of its own must ask.
var errNoTalk = errors.New("scontrol does not read questions")

// talks are those of one client and of its copies.
type talks struct {
	times talkTimes

	mu     sync.Mutex
	byConf map[string][]*talk
	deaf   time.Time // until then none is begun
}

// talk is one scontrol that reads questions.
type talk struct {
	stdin *os.File
	out   *os.File
	cmd   *exec.Cmd
	began time.Time
	times talkTimes

	greeted chan struct{} // closed when it has answered for the first time
	over    chan struct{} // closed when it answers no more

	mu      sync.Mutex
	closed  bool // stdin is closed: no more questions
	waiting []question
	quiet   *time.Timer
}

// question is a command, and another that prints its mark: a word that no user can
// know, so that nothing in the text of a job looks like the end of an answer. The
// first has no command.
type question struct {
	mark   string
	answer chan string // has room
}

// ask returns what "scontrol --local show job -d -o jobID" prints to stdout, which
// is nothing where there is an error. Errors: errNoTalk; ErrUnavailable.
func (t *talks) ask(ctx context.Context, c *Client, jobID uint32) (string, error) {
	began := time.Now()
	with, answer, err := t.put(c, "show job "+id(jobID))
	if err != nil {
		return "", err
	}
	if err := with.awaitGreeting(ctx); err != nil {
		return "", err
	}
	patience := time.NewTimer(c.timeout)
	defer patience.Stop()
	select {
	case text := <-answer:
		if c.took != nil {
			c.took("scontrol", time.Since(began))
		}
		if text != "" {
			c.programs.hasAnswered()
		}
		return text, nil
	case <-with.over:
		return "", errNoTalk
	case <-patience.C:
		with.end()
		return "", fmt.Errorf("scontrol --local show job -d -o %d: no answer within %s: %w: %w",
			jobID, c.timeout, ErrSilent, context.DeadlineExceeded)
	case <-ctx.Done():
		return "", fmt.Errorf("scontrol --local show job -d -o %d: %w: %w", jobID, ErrUnavailable, ctx.Err())
	}
}

// awaitGreeting waits for the first answer of one that was just begun.
func (t *talk) awaitGreeting(ctx context.Context) error {
	select {
	case <-t.greeted:
		return nil
	default:
	}
	late := time.NewTimer(time.Until(t.began.Add(t.times.greeting)))
	defer late.Stop()
	select {
	case <-t.greeted:
		return nil
	case <-t.over:
	case <-late.C:
	case <-ctx.Done():
	}
	return errNoTalk
}

// put asks the one with the fewest questions.
func (t *talks) put(c *Client, command string) (*talk, <-chan string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.deaf) {
		return nil, nil, errNoTalk
	}
	var best *talk
	fewest := 0
	kept := t.byConf[c.conf][:0]
	for _, other := range t.byConf[c.conf] {
		n, open := other.state()
		if !open {
			continue
		}
		kept = append(kept, other)
		if best == nil || n < fewest {
			best, fewest = other, n
		}
	}
	t.byConf[c.conf] = kept
	if best == nil || (fewest > 0 && len(kept) < mostTalks) {
		begun, err := c.beginTalk(t)
		if err != nil {
			return nil, nil, err
		}
		t.byConf[c.conf] = append(kept, begun)
		best = begun
	}
	answer, err := best.put(command)
	return best, answer, err
}

// isDeaf is told of a scontrol that ended, or was given up, before it said anything.
func (t *talks) isDeaf() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.deaf = time.Now().Add(deafFor)
}

func (c *Client) beginTalk(of *talks) (*talk, error) {
	path, err := c.programs.path(scontrolName)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTalk, err)
	}
	cmd := exec.Command(path, "--local", "-d", "-o")
	// Where it uses readline, questions are echoed: plainly.
	cmd.Env = append(Environment(os.Environ(), c.conf), "TERM=dumb", "INPUTRC=/dev/null")
	itsIn, stdin, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTalk, err)
	}
	defer itsIn.Close()
	out, itsOut, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTalk, errors.Join(err, stdin.Close()))
	}
	defer itsOut.Close()
	cmd.Stdin, cmd.Stdout = itsIn, itsOut
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoTalk, errors.Join(err, stdin.Close(), out.Close()))
	}
	t := &talk{
		stdin: stdin, out: out, cmd: cmd, began: time.Now(), times: of.times,
		greeted: make(chan struct{}), over: make(chan struct{}),
	}
	t.quiet = time.AfterFunc(t.times.quiet, t.closeIfQuiet)
	tooLate := time.AfterFunc(c.timeout, func() {
		select {
		case <-t.greeted:
		default:
			t.end()
		}
	})
	go func() {
		t.listen()
		tooLate.Stop()
		select {
		case <-t.greeted:
		default:
			of.isDeaf()
		}
		t.end()
		_ = cmd.Wait()
	}()
	_, err = t.put("")
	return t, err
}

// state returns how many wait for answers, and whether more may be asked.
func (t *talk) state() (waiting int, open bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed && time.Since(t.began) > t.times.asked {
		t.close()
	}
	return len(t.waiting), !t.closed
}

func (t *talk) put(command string) (<-chan string, error) {
	q := question{mark: "n" + strings.ToLower(rand.Text()) + "x", answer: make(chan string, 1)}
	text := showMark + q.mark + "\n"
	if command != "" {
		text = command + "\n" + text
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errNoTalk
	}
	t.waiting = append(t.waiting, q)
	_ = t.stdin.SetWriteDeadline(time.Now().Add(time.Second)) // it has room for a thousand
	if _, err := t.stdin.WriteString(text); err != nil {
		t.close() // what was asked before is still answered
		return nil, fmt.Errorf("%w: %w", errNoTalk, err)
	}
	return q.answer, nil
}

// listen hands out the answers until there are no more.
func (t *talk) listen() {
	lines := bufio.NewReader(t.out)
	var text strings.Builder
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		// Without readline nothing is echoed, and what is printed comes after a prompt.
		for strings.HasPrefix(line, prompt) {
			line = line[len(prompt):]
		}
		switch mark := t.mark(); strings.TrimSuffix(line, "\n") {
		case mark:
			t.hand(text.String())
			text.Reset()
		case showMark + mark: // the echo
		default:
			text.WriteString(line)
		}
	}
}

const (
	prompt   = "scontrol: "
	showMark = "show hostnames " // prints the name of one host as it is, and asks nobody
)

// mark is what ends the next answer.
func (t *talk) mark() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return ""
	}
	return t.waiting[0].mark
}

// hand gives the answer to the first who waits.
func (t *talk) hand(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return // an empty line, which nobody has asked for
	}
	t.waiting[0].answer <- text
	t.waiting = t.waiting[1:]
	select {
	case <-t.greeted:
	default:
		close(t.greeted)
	}
	if len(t.waiting) == 0 {
		t.quiet.Reset(t.times.quiet)
	}
}

func (t *talk) closeIfQuiet() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		t.close()
	}
}

// close asks no more questions: scontrol ends when it has answered. t.mu is held.
func (t *talk) close() {
	if !t.closed {
		t.closed = true
		t.quiet.Stop()
		_ = t.stdin.Close()
	}
}

// end ends it at once.
func (t *talk) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.close()
	select {
	case <-t.over:
	default:
		close(t.over)
		_ = t.cmd.Process.Kill() // which says so where it has ended
		_ = t.out.Close()        // a wrapper's child could keep it open
	}
}
