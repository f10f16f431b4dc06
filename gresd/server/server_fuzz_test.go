// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// FuzzConversation: what a connection may bring, line by line, to a daemon with two
// jobs on it. A user changes nothing and sees nothing of others; after whatever root's
// hooks ask, no card is above 100 % and both jobs can be released.
func FuzzConversation(f *testing.F) {
	line := func(req wire.Request) string {
		text, err := json.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		return string(text)
	}
	node := newTestNode(f).start()
	grants := []wire.Request{
		node.job(7, 30),
		node.job(8, 40, func(j *slurm.JobFacts) { j.UID, j.GID, j.User = 1000, 1000, "ada" }),
	}
	both := line(grants[0]) + "\n" + line(grants[1])
	for _, s := range []string{
		both, line(grants[0]) + "\n" + `{"op":"release","job_id":7}`, both + "\n" + `{"op":"set","job_id":7,"cores":90}` + "\n" + `{"op":"jobs","processes":true}`,
		`{"op":"ping"}` + "\n" + `{"op":"status"}` + "\n" + `{"op":"topo"}`, `{"op":"explain","gres":"vgpu:200","options":{"mem":"8G"}}`, `{"op":"explain","job_id":7}`,
		`{"op":"cordon","card":"0","reason":"x"}` + "\n" + both + "\n" + `{"op":"uncordon","card":"0"}`, strings.ReplaceAll(both, `"gpus":[0]`, `"gpus":[1,0,1]`),
		strings.Replace(both, `"op":"grant"`, `"op":"grant","options":{"mem":"1","cores":"100","mode":"soft:1"}`, 1), `{"op":"grant","job_id":9,"uid":0,"gid":0}`,
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, root bool) {
		cred := wire.Cred{UID: 1000, PID: 1}
		if root {
			cred.UID = 0
		} else {
			for _, req := range grants {
				if rep := node.dispatch(context.Background(), req, wire.Cred{}); !rep.OK {
					t.Fatalf("grant: %+v", rep)
				}
			}
		}
		before := node.ledger.List()
		r := bufio.NewReader(bytes.NewReader(text))
		for range 8 {
			req, err := wire.ReadRequest(r)
			if err != nil {
				break
			}
			rep := node.dispatch(context.Background(), req, cred)
			if err := wire.WriteReply(&bytes.Buffer{}, rep); err != nil || !rep.OK && rep.Message == "" {
				t.Fatalf("%+v: %+v: %v", req, rep, err)
			}
			if !root {
				checkOwn(t, req, rep)
			}
			checkCards(t, node.ledger.List())
		}
		if after := node.ledger.List(); !root && !reflect.DeepEqual(before, after) {
			t.Fatalf("a user made of %+v\n%+v", before, after)
		}
		for _, rec := range node.ledger.List() {
			if rep := node.dispatch(context.Background(), wire.Request{Op: wire.OpRelease, JobID: rec.JobID}, wire.Cred{}); !rep.OK {
				t.Fatalf("release: %+v", rep)
			}
		}
		for _, card := range node.cards.cards {
			node.dispatch(context.Background(), wire.Request{Op: wire.OpUncordon, Card: string(card.UUID)}, wire.Cred{})
		}
	})
}

// checkOwn: uid 1000 is told of job 8 alone, and changes nothing.
func checkOwn(t *testing.T, req wire.Request, rep wire.Reply) {
	t.Helper()
	changes := []wire.Op{wire.OpGrant, wire.OpRelease, wire.OpSet, wire.OpCordon, wire.OpUncordon}
	if slices.Contains(changes, req.Op) && (rep.OK || rep.Kind != wire.KindUser) {
		t.Fatalf("%s by a user: %+v", req.Op, rep)
	}
	for _, job := range rep.Jobs {
		if job.UID != 1000 {
			t.Fatalf("a user was shown %+v", job)
		}
	}
	text, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte("nobody")) && !strings.Contains(fmt.Sprint(req), "nobody") {
		t.Fatalf("a user was told of another: %s", text)
	}
}

func checkCards(t *testing.T, records []ledger.Record) {
	t.Helper()
	shares := map[gpu.UUID]gpu.Share{}
	for _, rec := range records {
		for _, c := range rec.Placement.Cards {
			if shares[c.UUID] += c.Share; shares[c.UUID] > gpu.FullCard {
				t.Fatalf("card %s holds %d %%: %+v", c.UUID, shares[c.UUID], records)
			}
		}
	}
}
