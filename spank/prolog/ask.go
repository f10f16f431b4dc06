// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const (
	// retryEvery is short compared with the second that a restart of gresd takes.
	retryEvery = 200 * time.Millisecond
	// noShareWait is how long a job without a sign of a share waits for gresd.
	noShareWait = 2 * time.Second
	// answerMargin is how much sooner than the Prolog stops waiting gresd must answer.
	answerMargin = 3 * time.Second
)

// answer is a reply of gresd, or the reason why there is none.
type answer struct {
	reply wire.Reply
	err   error
}

// kind returns the kind of gresd's error; "" if gresd did not answer.
func (a answer) kind() wire.Kind {
	var reported *wire.Error
	switch {
	case !errors.As(a.err, &reported):
		return ""
	case reported.Kind == "":
		return wire.KindNode
	}
	return reported.Kind
}

// isAnswer reports whether gresd has answered.
func (a answer) isAnswer() bool { return a.err == nil || a.kind() != "" }

// isFinal reports whether gresd has decided.
func (a answer) isFinal() bool { return a.isAnswer() && a.kind() != wire.KindBusy }

// ask sends a request. A repeated request is harmless. With wait, ask repeats it until h.Patience
// after gresd was last seen, or until h.AnswerWait is over. A gresd that takes the connection and does
// not answer has all of h.AnswerWait: its process can be stopped, or its disk slow. If it breaks the
// connection, ask raises h.Patience to h.RestartWait. Without wait, there is one attempt: a node without
// gresd still runs jobs without a share at full speed.
func (h *Hook) ask(ctx context.Context, req wire.Request, wait bool) answer {
	client := wire.Client{Socket: h.socket(), Timeout: min(wire.DefaultTimeout, h.AnswerWait)}
	if !h.placedByGresd() {
		client.Timeout = noShareWait
	}
	seen, last := time.Now(), time.Now().Add(h.AnswerWait)
	for {
		if wait {
			client.Timeout = max(time.Until(last), retryEvery)
		}
		reply, err := client.Do(ctx, req)
		a := answer{reply, err}
		var op *net.OpError
		if !a.isAnswer() && (!errors.As(err, &op) || op.Op != "dial") { // gresd took the connection
			seen, h.Patience = time.Now(), max(h.Patience, h.RestartWait)
		}
		if !wait || a.isAnswer() || errors.Is(err, context.DeadlineExceeded) {
			return a
		}
		if next := time.Now().Add(retryEvery); next.After(seen.Add(h.Patience)) || next.After(last) {
			return a
		}
		select {
		case <-ctx.Done():
			return a
		case <-time.After(retryEvery):
		}
	}
}

// ping returns an error unless gresd answers within the time.
func (h *Hook) ping(ctx context.Context, within time.Duration) error {
	client := wire.Client{Socket: h.socket(), Timeout: within}
	_, err := client.Do(ctx, wire.Request{Op: wire.OpPing})
	return err
}

// setWithin tells gresd when the Prolog needs the answer.
func (h *Hook) setWithin(req *wire.Request) {
	req.Within = uint32(max(1, (h.AnswerWait - answerMargin).Seconds()))
}
