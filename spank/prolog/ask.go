// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// retryEvery is short against the second that a restart of gresd takes.
const retryEvery = 200 * time.Millisecond

// ask sends a request. All requests can be repeated: a gresd that is not there is
// waited for until the patience is over, and begins anew whenever one is seen. One
// that is there and does not answer has longer: it may be stopped, or its disk
// may be slow, and for a Prolog that fails Slurm drains the node. Other jobs do
// not wait: a node without gresd still runs them at full speed.
func (h *Hook) ask(ctx context.Context, req wire.Request) (wire.Reply, error) {
	client := wire.Client{Socket: h.socket(), Timeout: min(wire.DefaultTimeout, h.AnswerWait)}
	if !h.placedByGresd() {
		client.Timeout = plainWait
	}
	waits := h.patient || h.holdsShare()
	seen, last := time.Now(), time.Now().Add(h.AnswerWait)
	for {
		if waits {
			client.Timeout = max(time.Until(last), retryEvery)
		}
		rep, err := client.Do(ctx, req)
		if err == nil || isAnswer(err) || errors.Is(err, context.DeadlineExceeded) || !waits {
			return rep, err
		}
		if isThere(err) {
			seen = time.Now()
		}
		if next := time.Now().Add(retryEvery); next.After(seen.Add(h.Patience)) || next.After(last) {
			return rep, err
		}
		select {
		case <-ctx.Done():
			return rep, err
		case <-time.After(retryEvery):
		}
	}
}

// isThere says whether gresd took the connection that failed.
func isThere(err error) bool {
	var op *net.OpError
	return !errors.As(err, &op) || op.Op != "dial"
}

// isAnswer tells what gresd has said from gresd not having been reached.
func isAnswer(err error) bool {
	var answer *wire.Error
	return errors.As(err, &answer)
}

// isNodesFault tells an answer that is nobody's fault but this node's.
func isNodesFault(err error) bool {
	var answer *wire.Error
	return errors.As(err, &answer) && answer.Kind != wire.KindUser && !isBusy(err)
}

// isBusy tells the answer that there is none yet.
func isBusy(err error) bool {
	var answer *wire.Error
	return errors.As(err, &answer) && answer.Kind == wire.KindBusy
}

func isUsersFault(err error) bool {
	var answer *wire.Error
	return errors.As(err, &answer) && answer.Kind == wire.KindUser
}
