// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// retryEvery is short against the second that a restart of gresd takes.
const retryEvery = 200 * time.Millisecond

// ask sends a request. All requests can be repeated, so a connection that
// breaks is tried again until the patience is over. Other jobs do not wait: a
// node without gresd still runs them at full speed.
func (h *Hook) ask(ctx context.Context, req wire.Request) (wire.Reply, error) {
	client := wire.Client{Socket: h.socket()}
	deadline := time.Now().Add(h.Patience)
	for {
		rep, err := client.Do(ctx, req)
		if err == nil || isAnswer(err) || errors.Is(err, context.DeadlineExceeded) {
			return rep, err
		}
		if (!h.patient && !h.holdsShare()) || time.Now().Add(retryEvery).After(deadline) {
			return rep, err
		}
		select {
		case <-ctx.Done():
			return rep, err
		case <-time.After(retryEvery):
		}
	}
}

// isAnswer tells what gresd has said from gresd not having been reached.
func isAnswer(err error) bool {
	var answer *wire.Error
	return errors.As(err, &answer)
}

func isUsersFault(err error) bool {
	var answer *wire.Error
	return errors.As(err, &answer) && answer.Kind == wire.KindUser
}
