// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"strings"
	"testing"
)

// FuzzNode: one line's words are not taken for another field's.
func FuzzNode(f *testing.F) {
	f.Add("NodeName=n1 Arch=x86_64\n   State=IDLE+DRAIN ThreadsPerCore=1\n   Comment=vgpu: x\n   Reason=vgpu: gone [root@2026-01-01T00:00:00]\n")
	f.Add("State=")
	f.Add("   Reason=State=DOWN [x\n State=IDLE \n")
	f.Add("Comment=\nReason= [\nState=\xff y")
	f.Fuzz(func(t *testing.T, text string) {
		facts, err := parseNode(text)
		if (err != nil) != (facts.State == "") || err != nil && !errors.Is(err, ErrUnavailable) {
			t.Fatalf("%+v, %v", facts, err)
		}
		for _, value := range []string{facts.State, facts.Comment, facts.Reason} {
			if strings.Contains(value, "\n") || !strings.Contains(text, value) {
				t.Fatalf("%q of %q", value, text)
			}
		}
		if strings.Contains(facts.State, " ") {
			t.Fatalf("state %q", facts.State)
		}
	})
}

// FuzzAccount: the record of another job is never taken for the one asked for.
func FuzzAccount(f *testing.F) {
	c := columns
	f.Add("7"+c+"7"+c+"2026-01-01T00:00:00"+c+"x\n8"+c+"8"+c+"Unknown"+c+"two\nlines\n", uint32(7))
	f.Add("9"+c+"5_2"+c+"Unknown"+c+"a"+c+"b\n", uint32(9))
	f.Add("7"+c+"7\n", uint32(7))
	f.Add("07"+c+c+c+"\n7", uint32(7))
	f.Add("", uint32(0))
	f.Fuzz(func(t *testing.T, text string, job uint32) {
		got, err := parseAccount(text, job)
		if err != nil {
			if !errors.Is(err, ErrNoJob) && !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
			return
		}
		record := id(job) + columns
		if !strings.HasPrefix(text, record) && !strings.Contains(text, "\n"+record) {
			t.Fatalf("job %d of %q is %+v", job, text, got)
		}
		if got.Name == "" || got.Name != id(job) && !strings.Contains(got.Name, "_") {
			t.Fatalf("job %d is called %q", job, got.Name)
		}
	})
}

// FuzzGRES: what a node's list says of cards adds up, and no index is beyond what a
// node can have.
func FuzzGRES(f *testing.F) {
	for _, s := range []string{
		"shard:h200:30(IDX:0)", "shard:h200:80(80/100,0/100,0/100)", "gpu:h200:2(IDX:0-1)", "vgpu(CNT:80)", "vgpu:a100(CNT:20),vgpu:h200(CNT:60)",
		"shard:30(IDX:0),gpu:1(IDX:1)", "shard:4294967295(IDX:0),shard:2(IDX:0)", "shard:4294967296(IDX:0)", "shard:h200:130(65/100,65/100)", "gpu:1(IDX:N/A)", "shard:1(IDX:0-65535)", "shard:3(4/5,)", "(null)", "",
	} {
		f.Add(s, "n[1-3]", "n1")
	}
	f.Add("", "a[01-10,12].b,n2", "a07.b")
	f.Add("", "n[1-99999999999999999999]", "n5")
	f.Fuzz(func(t *testing.T, list, nodes, node string) {
		facts := JobFacts{}
		if err := facts.readGRES(list); err == nil {
			var sum uint64
			for i, n := range facts.Units {
				if i < 0 || i >= maxIndex {
					t.Fatalf("%q: card %d", list, i)
				}
				sum += uint64(n)
			}
			for _, i := range facts.WholeCards {
				if i < 0 || i >= maxIndex {
					t.Fatalf("%q: card %d", list, i)
				}
			}
			if shards := shardsIn(list); sum != shards {
				t.Fatalf("%q: %d shards on the cards, the list has %d: %v", list, sum, shards, facts.Units)
			}
		}
		in, err := HostlistContains(nodes, node)
		if err == nil && in && node == "" && nodes != "" && !strings.Contains(nodes, ",") {
			t.Fatalf("a node without a name is in %q", nodes)
		}
	})
}

// shardsIn adds up all counts of shards in a list.
func shardsIn(list string) (sum uint64) {
	for _, g := range listGRES(list) {
		if g.name == "shard" {
			sum += g.count
		}
	}
	return sum
}

// FuzzRecord: the words around a job's record, as Explain and Delay use them.
func FuzzRecord(f *testing.F) {
	for _, text := range capturedTexts(f) {
		f.Add(text, uint32(2))
	}
	f.Add("JobId=7 AdminComment=x Comment=y AdminComment=z WorkDir=/\nJobId=7 JobName=n", uint32(7))
	f.Add("AuthInfo = (null),cred_expire=99999999999\nCredInfo = cred_expire=5\n", uint32(1))
	f.Fuzz(func(t *testing.T, text string, job uint32) {
		record, err := findRecord(text, job)
		if err == nil && (!strings.Contains(text, record) || !strings.Contains(record, id(job))) {
			t.Fatalf("job %d: %q", job, record)
		}
		if explained(record) && !strings.Contains(record, ownWords) {
			t.Fatalf("explained, without a word of ours: %q", record)
		}
		if name := taskOf(record, job); name == "" {
			t.Fatalf("job %d has no name in %q", job, record)
		}
		if life := settingsOf(ParseShown(text)).CredentialLife; life < 0 || life.Hours() > 19 {
			t.Fatalf("a credential lives %s", life)
		}
	})
}
