// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func TestCordon(t *testing.T) {
	socket := serveRequests(t, func(req wire.Request) wire.Reply {
		switch {
		case req.Op == wire.OpCordon && req.Card == "0" && req.Reason == "fan noise":
			return wire.Reply{OK: true, Result: wire.Changed, Message: "card 0: cordoned"}
		case req.Op == wire.OpUncordon && req.Card == uuid && req.Reason == "":
			return wire.Reply{OK: true, Result: wire.Changed, Message: "card 0: takes jobs again"}
		}
		return wire.Reply{Kind: wire.KindUser, Message: "vgpu: cordon: another request"}
	})
	for _, c := range []struct {
		args string
		code int
		say  string
	}{
		{"cordon 0 fan noise", 0, "card 0: cordoned\n"},
		{"uncordon " + uuid, 0, "card 0: takes jobs again\n"},
		{"cordon 1", 1, "another request"},
		{"cordon", 2, "cordon CARD"},
		{"uncordon 0 1", 2, "uncordon CARD"},
	} {
		out, errs, code := run(t, append([]string{"--socket", socket}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(out+errs, c.say) {
			t.Errorf("%s: exit %d: %s%s", c.args, code, out, errs)
		}
	}
}

func TestSickCardsAndMessagesAreShown(t *testing.T) {
	socket := serve(t, func(op wire.Op) wire.Reply {
		if op == wire.OpStatus {
			return wire.Reply{OK: true, Status: &wire.Status{Cards: []wire.Card{{Index: 3, Why: "XID 79, since 2026"}, {Index: 4, Healthy: true}}}}
		}
		return wire.Reply{OK: true, Jobs: []wire.Job{{JobID: 7, Messages: []string{"2026 first", "2026 second"}}}}
	})
	out, _, code := run(t, "--socket", socket, "status")
	if code != 0 || !strings.Contains(out, "card 3 is out: XID 79, since 2026\n") || strings.Contains(out, "card 4 is out") {
		t.Errorf("exit %d: %s", code, out)
	}
	out, _, code = run(t, "--socket", socket, "jobs")
	if code != 0 || !strings.Contains(out, "job 7: 2026 first\n") || !strings.Contains(out, "job 7: 2026 second\n") {
		t.Errorf("exit %d: %s", code, out)
	}
}
