// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func explained(req wire.Request) wire.Reply {
	e := wire.Explanation{
		JobID: req.JobID, Request: "vgpu(share=30,mem=20G,mode=hard,priority=normal,policy=binpack)", Placement: "gresd",
		Cards: []wire.CardVerdict{
			{UUID: uuid, Index: 0, Type: "h200", Reason: "no_share", Why: "too little of its share is free", FreeShare: 20, FreeBytes: 100 << 30, WantShare: 30, WantBytes: 20 << 30, Jobs: 5, JobIDs: []uint32{12, 11, 14, 13, 15}},
			{UUID: uuid, Index: 1, Type: "h200", Reason: "taken", Why: "taken", FreeShare: 100, FreeBytes: 141 << 30, WantShare: 30, WantBytes: 20 << 30},
			{UUID: uuid, Index: 2, Type: "h200", Reason: "mig", Why: "is in MIG mode, which gresd does not share", FreeShare: 100, FreeBytes: 141 << 30},
		},
	}
	switch {
	case req.JobID == 8:
		return wire.Reply{Kind: wire.KindUser, Message: "vgpu: explain: job 8: want a job of yours"}
	case req.JobID == 9:
		at := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
		e.Decided, e.Lost = &at, true
	case req.Options.Policy == "spread":
		e.Message, e.Cards = "want 30 % and 20 GiB on one card: no card", nil
	case req.Options.Cores == "7":
		e.Placement, e.Cards[1].Reason = "slurm", "fits"
	}
	return wire.Reply{OK: true, Explain: &e}
}

func TestExplain(t *testing.T) {
	var got wire.Request
	socket := serveRequests(t, func(req wire.Request) wire.Reply {
		got = req
		return explained(req)
	})
	out, errs, code := run(t, "--socket", socket, "explain", "--gres=vgpu:30", "--vgpu-mem=20G", "--vgpu-cores=30",
		"--vgpu-cards=1", "--vgpu-mode=soft", "--vgpu-priority=low", "--vgpu-policy=binpack", "--vgpu-engine=time")
	if code != 0 || errs != "" {
		t.Fatalf("exit %d: %s", code, errs)
	}
	want := wire.Request{Op: wire.OpExplain, GRES: "vgpu:30", Options: wire.Options{
		Mem: "20G", Cores: "30", Cards: "1", Mode: "soft", Priority: "low", Policy: "binpack", Engine: "time",
	}}
	if got.GRES != want.GRES || got.Options != want.Options || got.JobID != 0 {
		t.Errorf("asked %+v, want %+v", got, want)
	}
	narrow(t, out)
	for _, text := range []string{"a request now: vgpu(share=30,", "\nwould get card 1\n", "5: 11,12,13,…  no_share\n", "20% 100 GiB", "30% 20 GiB", "\nno_share  too little", "-           0"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	for name, c := range map[string]struct {
		args []string
		say  []string
	}{
		"a job after a restart":   {[]string{"9"}, []string{"job 9, decided 2026-11-20T08:00:00Z: vgpu(", "\ngot card 1\n", "started anew"}},
		"nothing to be had":       {[]string{"--gres=vgpu:30", "--vgpu-policy=spread"}, []string{"\nnot placed: want 30 % and 20 GiB on one card: no card\n"}},
		"a choice of slurmctld's": {[]string{"--gres=vgpu:30", "--vgpu-cores=7"}, []string{"\nslurmctld can choose card 1\n"}},
	} {
		out, errs, code := run(t, append([]string{"--socket", socket, "explain"}, c.args...)...)
		for _, say := range c.say {
			if code != 0 || !strings.Contains(out, say) {
				t.Errorf("%s: exit %d, %s: no %q in\n%s", name, code, errs, say, out)
			}
		}
		narrow(t, out)
	}
	out, _, code = run(t, "explain", "9", "--json", "--socket", socket)
	var e wire.Explanation
	if err := json.Unmarshal([]byte(out), &e); err != nil || code != 0 || e.JobID != 9 || len(e.Cards[0].JobIDs) != 5 {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
}

func TestExplainMistakes(t *testing.T) {
	socket := serveRequests(t, explained)
	for name, c := range map[string]struct {
		args []string
		code int
		say  string
	}{
		"nothing":                {nil, 2, "want a job or a request"},
		"both":                   {[]string{"7", "--gres=vgpu:30"}, 2, "want a job or a request"},
		"a job's name":           {[]string{"7_1"}, 2, "want the number of a job, for example 4217"},
		"a job and an option":    {[]string{"7", "--vgpu-mem=8G"}, 2, "its own options count"},
		"somebody else's job":    {[]string{"8"}, 1, "want a job of yours"},
		"an option without gres": {[]string{"--vgpu-mem=8G"}, 2, "want a job or a request"},
		"an option that is none": {[]string{"--gres=vgpu:30", "--vgpu-memory=8G"}, 2, "vgpu-memory"},
		"a control character":    {[]string{"--gres=vgpu:\n30"}, 1, "control character"},
	} {
		out, errs, code := run(t, append([]string{"--socket", socket, "explain"}, c.args...)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.say) {
			t.Errorf("%s: exit %d, %q; want %d, %q", name, code, errs, c.code, c.say)
		}
	}
}
