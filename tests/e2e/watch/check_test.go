// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/records"
)

const gib = 1 << 30

// twoCards is a node of 80 GiB each, on which jobs 1 to 4 asked for 60 % and
// 48 GiB, job 5 for 10 % and 70 GiB, and no other job for anything.
var twoCards = Node{
	Memory: []uint64{80 * gib, 80 * gib},
	Asked: func(job int) (Ask, bool) {
		if job == 5 {
			return Ask{10, 70 * gib}, true
		}
		return Ask{60, 48 * gib}, job >= 1 && job <= 4
	},
}

func claim(job, card, units int, memory uint64) Claim { return Claim{job, card, units, memory * gib} }

// good is a look at two jobs, each on a card of its own.
func good() Look {
	both := []Claim{claim(1, 0, 60, 48), claim(2, 1, 60, 48)}
	return Look{
		Slurm: []Claim{claim(1, 0, 60, 0), claim(2, 1, 60, 0)}, Ledger: both, After: both, Grants: both,
		Cards: []Process{{PID: 11, Job: 1, Card: 0, Used: gib}, {PID: 12, Job: 1, Card: 0, Used: gib}, {PID: 21, Job: 2, Card: 1}},
		Node:  "MIXED",
	}
}

// A checker that finds nothing proves nothing: each of these histories is bad,
// and must be told as what it is.
func TestBadLooksAreTold(t *testing.T) {
	if wrong := twoCards.Check(good()); wrong != nil {
		t.Fatalf("a good look: %q", wrong)
	}
	for name, test := range map[string]struct {
		change func(*Look)
		want   string
	}{
		"slurmctld gives 120 % of a card": {
			func(l *Look) { l.Slurm = append(l.Slurm, claim(3, 1, 60, 0)) }, "slurmctld: card 1: 120 % given to jobs [2 3]",
		},
		"a share on a card that is given whole": {
			func(l *Look) { l.Slurm = append(l.Slurm, claim(3, 0, 100, 0)) }, "slurmctld: card 0: 160 % given to jobs [1 3]",
		},
		"slurmctld counts more than there is": {
			func(l *Look) { l.Slurm = []Claim{claim(1, -1, 150, 0), claim(2, -1, 60, 0)} }, "slurmctld: 210 units of 2 cards given",
		},
		"the ledger gives 120 %": {
			func(l *Look) { l.After = append(l.After, claim(3, 0, 60, 1)) }, "ledger: card 0: 120 % given to jobs [1 3]",
		},
		"the ledger gives more memory than there is": {
			func(l *Look) { l.Ledger = append(l.Ledger, claim(5, 0, 10, 70)) }, "ledger: card 0: 126701535232 of 85899345920 bytes given",
		},
		"grants give 101 %": {
			func(l *Look) { l.Grants = append(l.Grants, claim(3, 0, 41, 1)) }, "grants: card 0: 101 % given to jobs [1 3]",
		},
		"a job has a card twice": {
			func(l *Look) { l.Grants = append(l.Grants, claim(1, 0, 10, 1)) }, "grants: job 1 has card 0 twice",
		},
		"a card that is not there": {
			func(l *Look) { l.Ledger = append(l.Ledger, claim(3, 2, 10, 1)) }, "ledger: card 2 of jobs [3] is none of 2",
		},
		"two jobs of 60 % at work on a card": {
			func(l *Look) { l.Cards = append(l.Cards, Process{PID: 22, Job: 2, Card: 0}) }, "card 0: processes of jobs that asked for 120 %",
		},
		"two jobs whose memory is too much": {
			func(l *Look) { l.Cards = append(l.Cards, Process{PID: 51, Job: 5, Card: 0}) }, "card 0: processes of jobs that asked for 126701535232 of",
		},
		"more memory in use than the card has": {
			func(l *Look) { l.Cards[0].Used = 80 * gib }, "card 0: 86973087744 of 85899345920 bytes used",
		},
		"a process on a card that gresd gave to others": {
			func(l *Look) { l.Cards[2].Card = 0 }, "card 0: process 21 of job 2, to which gresd gave [1]",
		},
		"a process on a card that slurmctld gave to others": {
			func(l *Look) { l.Slurm[1].Card = 0 }, "card 1: process 21 of job 2, to which slurmctld gave [0]",
		},
		"a process without a grant": {
			func(l *Look) { l.Ledger, l.After = l.Ledger[:1], l.After[:1] }, "card 1: process 21 of job 2, to which gresd gave []",
		},
		"a process of a job that asked for nothing": {
			func(l *Look) { l.Cards[2].Job = 9 }, "card 1: process 21 of job 9, which asked for nothing",
		},
		"a drained node": {
			func(l *Look) { l.Node, l.Reason = "IDLE+DRAIN", "Prolog error" }, "node IDLE+DRAIN: Prolog error",
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := good()
			test.change(&l)
			if wrong := twoCards.Check(l); !strings.Contains(strings.Join(wrong, "\n"), test.want) {
				t.Errorf("told %q, want %q", wrong, test.want)
			}
		})
	}
}

func TestWhatIsNotBadIsNotTold(t *testing.T) {
	for name, change := range map[string]func(*Look){
		"slurmctld is away":                func(l *Look) { l.Slurm, l.Node = nil, "" },
		"a process of no job":              func(l *Look) { l.Cards = append(l.Cards, Process{PID: 99, Card: 0}) },
		"a job that ends during the look":  func(l *Look) { l.After = l.After[:1] },
		"a job that comes during the look": func(l *Look) { l.Ledger = l.Ledger[:1] },
		"counts without cards":             func(l *Look) { l.Slurm = []Claim{claim(1, -1, 60, 0), claim(2, -1, 140, 0)} },
		"a whole card of Slurm's own": func(l *Look) {
			l.Ledger, l.After, l.Slurm[1].Units = l.Ledger[:1], l.After[:1], 100
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := good()
			change(&l)
			if wrong := twoCards.Check(l); wrong != nil {
				t.Errorf("told %q", wrong)
			}
		})
	}
}

func TestLostJobsAreTold(t *testing.T) {
	jobs := []Job{
		{"done", []string{"COMPLETED"}, true},
		{"fails", []string{"FAILED"}, true},
		{"cancelled", []string{"COMPLETED", "CANCELLED"}, true},
		{"unknown", []string{"COMPLETED", ""}, true},
		{"vanished", []string{"COMPLETED"}, true},
		{"node fail", []string{"COMPLETED"}, true},
		{"idle", []string{"COMPLETED"}, true},
	}
	ended := map[string]string{
		"done": "COMPLETED", "fails": "FAILED", "cancelled": "CANCELLED", "node fail": "NODE_FAIL", "idle": "COMPLETED",
	}
	want := []string{
		"job vanished has no end",
		"job node fail ended NODE_FAIL, want COMPLETED",
		"job idle is COMPLETED, and its program never ran",
	}
	if wrong := Lost(jobs, ended, map[string]bool{"done": true, "fails": true}); !reflect.DeepEqual(wrong, want) {
		t.Errorf("told %q, want %q", wrong, want)
	}
}

func TestParseJobs(t *testing.T) {
	const text = `JobId=7 JobName=s1 UserId=x JobState=RUNNING Reason=None NodeList=n Nodes=n CPU_IDs=0 Mem=0 GRES=shard:sim:30(IDX:2) MinCPUsNode=1
JobId=8 JobName=s2 JobState=RUNNING Nodes=n CPU_IDs=1 Mem=0 GRES=shard:sim:80(0/100,80/100,0/100) MinCPUsNode=1
JobId=9 ArrayJobId=9 ArrayTaskId=1 JobName=s3 JobState=COMPLETING Nodes=n GRES=gpu:whole:2(IDX:4-5) x
JobId=10 JobName=s4 JobState=RUNNING Nodes=n GRES=vgpu(CNT:80) x
JobId=13 JobName=s7 JobState=RUNNING Nodes=n GRES=shard:sim:0(IDX:) x
JobId=11 JobName=s5 JobState=PENDING Nodes= x
JobId=12 JobName=s6 JobState=COMPLETED Nodes=n GRES=shard:sim:30(IDX:2) x
`
	claims, names, err := ParseJobs(text)
	want := []Claim{{7, 2, 30, 0}, {8, 1, 80, 0}, {9, 4, 100, 0}, {9, 5, 100, 0}, {10, -1, 80, 0}}
	if err != nil || !reflect.DeepEqual(claims, want) || len(names) != 7 || names[11] != "s5" {
		t.Errorf("claims %v, names %v, %v; want %v", claims, names, err, want)
	}
	if _, _, err := ParseJobs("JobId=7 JobName=a JobState=RUNNING GRES=shard:sim:80(IDX:0-1) x"); err == nil {
		t.Error("80 shards on two cards were read")
	}
	if claims, _, err := ParseJobs("No jobs in the system\n"); err != nil || claims != nil {
		t.Errorf("no jobs: %v, %v", claims, err)
	}
}

func TestEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jobcomp")
	const text = `JobId=7 UserId=a(1) Name=s1 JobState=REQUEUED Partition=main
JobId=8 Name=s2 JobState=COMPLETED ArrayJobId=9 ArrayTaskId=2 ExitCode=0:0
JobId=7 Name=s1 JobState=FAILED
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ends, err := Ends(file)
	want := map[string]map[int]string{"s1": {0: "FAILED"}, "s2": {2: "COMPLETED"}}
	if err != nil || !reflect.DeepEqual(ends, want) {
		t.Errorf("got %v, %v; want %v", ends, err, want)
	}
}

func TestLedgerText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	if all, err := records.Read(path); err != nil || len(all) != 0 {
		t.Errorf("no ledger: %v, %v", path, err)
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line := func(seal, text string) string { return records.Sum(seal+text) + " " + text + "\n" }
	const (
		seven  = `{"job_id":7,"state":"granted","placement":{"cards":[{"gpu_uuid":"B","share":30,"memory_bytes":5}]}}`
		eight  = `{"job_id":8,"state":"refused","placement":{"cards":null}}`
		nine   = `{"job_id":9,"placement":{"cards":[{"gpu_uuid":"A","share":10,"memory_bytes":1}]}}`
		header = `{"version":2,"ledger":"x","journal":%d,"after":%d}`
	)
	write(path, fmt.Sprintf(`{"version":2,"checksum":%q,"ledger":"x","journal":3,"records":[%s]}`, records.Sum("x/3/["+seven+"]"), seven))
	journal := strings.TrimSuffix(path, ".json") + ".journal-"
	if _, err := records.Read(path); err == nil {
		t.Error("a snapshot without its journal was read")
	}
	write(journal+"3", line("", fmt.Sprintf(header, 3, 40))+line("x/3/", `41 [{"set":`+eight+`},{"set":`+nine+`}]`)+
		line("x/3/", `42 [{"delete":7}]`)) // which failed
	write(journal+"4", line("", fmt.Sprintf(header, 4, 41))+line("x/4/", `42 [{"delete":8}]`)+line("x/4/", `43 [{"delete":9}]`)[:20])
	all, err := records.Read(path)
	if err != nil || len(all) != 2 || string(all[7]) != seven || string(all[9]) != nine {
		t.Errorf("got %v, %v", all, err)
	}
	claims, err := cards{"A": 0, "B": 1}.claims(all)
	if want := []Claim{{7, 1, 30, 5}, {9, 0, 10, 1}}; err != nil || !reflect.DeepEqual(claims, want) {
		t.Errorf("got %v, %v; want %v", claims, err, want)
	}
	if _, err := (cards{"A": 0}).claims(all); err == nil {
		t.Error("a card that is not there was read")
	}
	write(path, fmt.Sprintf(`{"version":2,"checksum":%q,"ledger":"x","journal":3,"records":[%s]}`, records.Sum("x/3/["+seven+"]"), eight))
	if _, err := records.Read(path); err == nil {
		t.Error("a changed snapshot was read")
	}
}
