// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// www are the facts that the captured jobs have in common.
func www(id uint32, change func(*JobFacts)) JobFacts {
	f := JobFacts{
		JobID: id, UID: 33, GID: 33, User: "www-data", Partition: "main",
		State: "RUNNING", Batch: true, NodeList: "n1", OnNode: true,
	}
	change(&f)
	return f
}

func ada(change func(*JobFacts)) JobFacts {
	f := JobFacts{
		JobID: 7, UID: 1001, GID: 1001, User: "ada", Account: "physics", Partition: "gpu",
		State: "RUNNING", Batch: true, Restarts: 2, NodeList: "n1", OnNode: true, MayAskForShards: true,
	}
	change(&f)
	return f
}

// The files of 22.05 were printed by a real slurmctld; those of 26.05 follow
// the source of its scontrol.
func TestJobsAreReadAsSlurmPrintsThem(t *testing.T) {
	for name, test := range map[string]struct {
		file, node string
		want       JobFacts
	}{
		"one card": {"22.05/one_card", "n1", www(2, func(f *JobFacts) {
			f.MayAskForShards, f.Units = true, map[int]gpu.Share{1: 80}
		})},
		"a comment that imitates other keys": {"22.05/comment_with_token", "n1", www(1, func(f *JobFacts) {
			f.MayAskForShards, f.Units = true, map[int]gpu.Share{0: 30}
			f.Comment = "vgpu(mem=8G,cores=30,mode=soft:80,share=30) my note a=b JobState=FAKE UserId=root(0)"
		})},
		"a comment and a name that imitate an allocation": {"22.05/comment_of_two_lines", "n3", www(8, func(f *JobFacts) {
			f.MayAskForShards, f.Units = true, map[int]gpu.Share{0: 30}
			f.NodeList = "n3"
			f.Comment = "two\nlines  Nodes=n3 GRES=shard:99(IDX:3)"
		})},
		"the first of two nodes": {"22.05/two_nodes_on_two_segments", "n1", www(3, func(f *JobFacts) {
			f.MayAskForShards, f.Units, f.NodeList = true, map[int]gpu.Share{0: 20}, "n[1-2]"
		})},
		"the second of two nodes": {"22.05/two_nodes_on_two_segments", "n2", www(3, func(f *JobFacts) {
			f.MayAskForShards, f.Units, f.NodeList = true, map[int]gpu.Share{0: 20}, "n[1-2]"
		})},
		"a node that the job is not on": {"22.05/two_nodes_on_two_segments", "n3", www(3, func(f *JobFacts) {
			f.MayAskForShards, f.NodeList, f.OnNode = true, "n[1-2]", false
		})},
		"the node of a segment of its own": {"22.05/node_range", "n1", www(14, func(f *JobFacts) {
			f.MayAskForShards, f.Units, f.NodeList = true, map[int]gpu.Share{3: 15}, "n[1-3]"
		})},
		"a node within a range": {"22.05/node_range", "n3", www(14, func(f *JobFacts) {
			f.MayAskForShards, f.Units, f.NodeList = true, map[int]gpu.Share{0: 15}, "n[1-3]"
		})},
		"a whole card": {"22.05/whole_card", "n1", www(4, func(f *JobFacts) {
			f.WholeCards = []int{2}
		})},
		"two whole cards": {"22.05/two_whole_cards", "n1", www(13, func(f *JobFacts) {
			f.WholeCards = []int{1, 2}
		})},
		"a job without gres": {"22.05/no_gres", "n2", www(15, func(f *JobFacts) { f.NodeList = "n2" })},
		"a pending job": {"22.05/pending", "n1", www(16, func(f *JobFacts) {
			f.MayAskForShards, f.State, f.NodeList, f.OnNode = true, "PENDING", "", false
		})},
		"an interactive job": {"22.05/interactive", "n3", www(10, func(f *JobFacts) {
			f.MayAskForShards, f.Units, f.NodeList, f.Batch = true, map[int]gpu.Share{0: 25}, "n3", false
		})},
		"a component of a het job": {"22.05/het_component", "n3", www(7, func(f *JobFacts) {
			f.MayAskForShards, f.Units, f.NodeList, f.HetJobID = true, map[int]gpu.Share{0: 20}, "n3", 6
		})},
		"the leader of an array among its tasks": {"22.05/array_leader", "n1", www(5, func(f *JobFacts) {
			f.MayAskForShards, f.Units = true, map[int]gpu.Share{0: 10}
		})},
		"a task among those of its array": {"22.05/array_leader", "n1", www(11, func(f *JobFacts) {
			f.MayAskForShards, f.Units = true, map[int]gpu.Share{0: 10}
		})},
		"a task of an array": {"22.05/array_task", "n1", www(11, func(f *JobFacts) {
			f.MayAskForShards, f.Units = true, map[int]gpu.Share{0: 10}
		})},
		"one card of a newer Slurm": {"26.05/one_card", "n1", ada(func(f *JobFacts) {
			f.Units, f.Comment = map[int]gpu.Share{1: 80}, "my run vgpu(mem=20G,share=30)"
		})},
		"two cards of a newer Slurm": {"26.05/two_cards", "n1", ada(func(f *JobFacts) {
			f.Units = map[int]gpu.Share{0: 50, 1: 50}
		})},
		"the second node of a newer Slurm": {"26.05/two_nodes", "n2", ada(func(f *JobFacts) {
			f.Units, f.NodeList = map[int]gpu.Share{1: 30}, "n[1-2]"
		})},
		"whole cards beside another gres": {"26.05/whole_and_other_gres", "n1", ada(func(f *JobFacts) {
			f.WholeCards, f.MayAskForShards = []int{0, 2}, false
		})},
		"a plain count": {"26.05/counted", "n1", ada(func(f *JobFacts) {
			f.Counted, f.MayAskForShards = 80, false
		})},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseJob(captured(t, test.file), test.want.JobID, test.node)
			if err != nil {
				t.Fatal(err)
			}
			got.TimeLimit = 0 // see TestTimeLimit
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func captured(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestWordsThatImitateScontrolAreRefused(t *testing.T) {
	const groups = "  Nodes=n1 CPU_IDs=1 Mem=0 GRES=shard:sim:80(IDX:1)"
	plain := captured(t, "22.05/one_card")
	named := func(name string) string { return strings.Replace(plain, "JobName=job.sh", "JobName="+name, 1) }
	for name, test := range map[string]struct {
		text string
		id   uint32
	}{
		"a whole head in the job name":            {captured(t, "22.05/forged_head"), 19},
		"an owner in the job name":                {captured(t, "22.05/forged_owner"), 18},
		"a new record in the job name":            {captured(t, "22.05/forged_record"), 17},
		"a whole record in the job name":          {named(strings.TrimSpace(plain)), 2},
		"a second record of the same job":         {named("x\nJobId=2 JobName=y"), 2},
		"a state in the job name":                 {named("x JobState=COMPLETED"), 2},
		"a node list in the job name":             {named("x NodeList=n1" + groups), 2},
		"an allocation in the host of the client": {strings.Replace(plain, "login1", "x NodeList=n1"+groups, 1), 2},
		"the end of the head in the comment":      {strings.Replace(plain, " Power=", " Comment=x MinCPUsNode=1 Power=", 1), 2},
		"a node in two allocations":               {strings.Replace(plain, groups, groups+groups, 1), 2},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := ParseJob(test.text, test.id, "n1"); err == nil {
				t.Errorf("believed: %+v", got)
			} else if errors.Is(err, ErrNoJob) || errors.Is(err, ErrUnavailable) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestAllocationsInTheJobNameDoNotCount(t *testing.T) {
	text := strings.Replace(captured(t, "22.05/one_card"), "JobName=job.sh",
		"JobName=x   Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:sim:99(IDX:0)", 1)
	got, err := ParseJob(text, 2, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if want := map[int]gpu.Share{1: 80}; !reflect.DeepEqual(got.Units, want) {
		t.Errorf("units are %v, want %v", got.Units, want)
	}
}

func TestAJobThatIsNotPrintedIsUnknown(t *testing.T) {
	if _, err := ParseJob(captured(t, "22.05/one_card"), 3, "n1"); !errors.Is(err, ErrNoJob) {
		t.Errorf("error is %v, want ErrNoJob", err)
	}
	if _, err := ParseJob("", 3, "n1"); !errors.Is(err, ErrNoJob) {
		t.Errorf("of nothing: error is %v, want ErrNoJob", err)
	}
}

func TestGRESOfOneNode(t *testing.T) {
	for name, test := range map[string]struct {
		gres  string
		units map[int]gpu.Share
		whole []int
		count gpu.Share
		types []string
		wrong string
	}{
		"nothing":                          {gres: ""},
		"shards on a card":                 {gres: "shard:30(IDX:3)", units: map[int]gpu.Share{3: 30}},
		"shards that fill several cards":   {gres: "shard:v:200(IDX:0,2)", units: map[int]gpu.Share{0: 100, 2: 100}},
		"shards on cards, split unknown":   {gres: "shard:80(IDX:0-1)", wrong: "does not tell how they are split"},
		"shards of two types":              {gres: "shard:a:10(IDX:0),shard:b:20(IDX:2)", units: map[int]gpu.Share{0: 10, 2: 20}},
		"two types of a newer Slurm":       {gres: "shard:a:10(10/100,0/100),shard:b:20(0/100,20/100)", units: map[int]gpu.Share{0: 10, 1: 20}},
		"a sum that does not agree":        {gres: "shard:80(50/100,20/100)", wrong: "hold 70 in sum"},
		"shards without a place":           {gres: "shard:80((null))", wrong: "cannot read"},
		"whole cards and a range":          {gres: "gpu:x:3(IDX:0-1,5)", whole: []int{0, 1, 5}},
		"whole cards of two types":         {gres: "gpu:b:1(IDX:4),gpu:a:1(IDX:1)", whole: []int{1, 4}},
		"no whole card":                    {gres: "gpu:0(IDX:N/A)"},
		"a range from high to low":         {gres: "gpu:1(IDX:3-1)", wrong: "cannot read the card indexes"},
		"a range without an end":           {gres: "gpu:1(IDX:0-99999999)", wrong: "cannot read the card indexes"},
		"cards without IDX":                {gres: "gpu:1(0/1)", wrong: "cannot read the cards"},
		"a count of vgpu":                  {gres: "vgpu(CNT:80)", count: 80},
		"a count of one type":              {gres: "vgpu:v(CNT:80)", count: 80, types: []string{"v"}},
		"a count of two types":             {gres: "vgpu:h200(CNT:20),vgpu:a100(CNT:60)", count: 80, types: []string{"a100", "h200"}},
		"a count of something else":        {gres: "licence(CNT:80),nic:mlx:2(IDX:0-1)"},
		"a shard word that is unknown":     {gres: "shard(X:80)", wrong: "cannot read GRES="},
		"shards without cards":             {gres: "shard(CNT:80)", wrong: "want File= in gres.conf"},
		"a count that is no 32-bit number": {gres: "shard:99999999999(IDX:0)", wrong: "cannot read the count"},
	} {
		t.Run(name, func(t *testing.T) {
			var f JobFacts
			err := f.readGRES(test.gres)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Fatalf("error is %v, want …%s", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := JobFacts{Units: test.units, WholeCards: test.whole, Counted: test.count, CountedTypes: test.types}
			f.TimeLimit = 0
			if !reflect.DeepEqual(f, want) {
				t.Errorf("got %+v, want %+v", f, want)
			}
			if f.Holds() != (test.units != nil || test.whole != nil || test.count != 0) {
				t.Errorf("Holds is %v", f.Holds())
			}
		})
	}
}

func TestNodesInAHostlist(t *testing.T) {
	for _, test := range []struct {
		list, node string
		want       bool
	}{
		{"n1", "n1", true},
		{"n1", "n", false},
		{"n1", "n11", false},
		{"", "n1", false},
		{"(null)", "(null)", false},
		{"n1,n3", "n3", true},
		{"n[1-3]", "n2", true},
		{"n[1-3]", "n4", false},
		{"n[1-3]", "n02", false},
		{"n[01-12]", "n02", true},
		{"n[01-12]", "n2", false},
		{"n[08-12]", "n10", true},
		{"n[8-12]", "n10", true},
		{"n[1,3,7-9],x2", "n3", true},
		{"n[1,3,7-9],x2", "x2", true},
		{"n[1,3,7-9],x2", "n2", false},
		{"rack[1-2]node[1-4]", "rack2node3", true},
		{"rack[1-2]node[1-4]", "rack2node5", false},
		{"a[1-2][3-4]", "a24", true},
		{"a[1-2][3-4]", "a25", false},
		{"gpu[1-2].site", "gpu2.site", true},
		{"gpu[1-2].site", "gpu2", false},
		{"n[1-3]", "m2", false},
	} {
		got, err := HostlistContains(test.list, test.node)
		if err != nil || got != test.want {
			t.Errorf("%q in %q: %v, %v; want %v", test.node, test.list, got, err, test.want)
		}
	}
	for _, list := range []string{"n[1-", "n[a-b]", "n[]"} {
		if _, err := HostlistContains(list, "n1"); err == nil {
			t.Errorf("%q: no error", list)
		}
	}
}

// capturedTexts are what real releases of Slurm printed.
func capturedTexts(t testing.TB) (texts []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/2*/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captured files: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

func FuzzParseJob(f *testing.F) {
	for _, text := range capturedTexts(f) {
		f.Add(text, uint32(7), "n1")
	}
	f.Fuzz(func(t *testing.T, text string, id uint32, node string) {
		facts, err := ParseJob(text, id, node)
		if err == nil && facts.JobID != id {
			t.Errorf("asked for job %d, got %d", id, facts.JobID)
		}
		for i, n := range facts.Units {
			if i < 0 || n == 0 && err == nil && !strings.Contains(text, ":0(") {
				t.Errorf("card %d holds %d", i, n)
			}
		}
	})
}

// Slurm counts in BatchFlag: every number but 0 is of a batch job.
func TestABatchJobThatWasStartedAgainIsOne(t *testing.T) {
	text, err := os.ReadFile("testdata/22.05/one_card.txt")
	if err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]bool{"0": false, "1": true, "2": true} {
		facts, err := ParseJob(strings.Replace(string(text), "BatchFlag=1", "BatchFlag="+flag, 1), 2, "n1")
		if err != nil || facts.Batch != want {
			t.Errorf("BatchFlag=%s: batch %v, %v; want %v", flag, facts.Batch, err, want)
		}
	}
}

// Words of Explain, behind the site's own or alone.
func TestJobThatWasExplained(t *testing.T) {
	text, err := os.ReadFile("testdata/26.05/one_card.txt")
	if err != nil {
		t.Fatal(err)
	}
	for words, want := range map[string]bool{"checked": false, "vgpu: place: none": true, "ask Ann vgpu: place: none": true, "(null)": false} {
		record := strings.Replace(string(text), "AdminComment=checked", "AdminComment="+words, 1)
		if f, err := ParseJob(record, 7, "n1"); err != nil || f.Explained != want {
			t.Errorf("%q: %v, %v; want %v", words, f.Explained, err, want)
		}
	}
}

func TestTimeLimit(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"00:01:00": time.Minute, "1-02:03:04": 26*time.Hour + 3*time.Minute + 4*time.Second, "365-00:00:00": 365 * 24 * time.Hour,
		"UNLIMITED": 0, "Partition_Limit": 0, "": 0, "-1:00:00": 0, "x-00:01:00": 0,
	} {
		if got := timeLimit(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	file, err := os.ReadFile("testdata/22.05/whole_card.txt")
	if err != nil {
		t.Fatal(err)
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(string(file), "JobId="), " ")
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	// A name cannot imitate it.
	text := strings.Replace(string(file), " JobName=", " JobName=x TimeLimit=00:00:01 ", 1)
	if facts, err := ParseJob(text, uint32(n), "n1"); err != nil || facts.TimeLimit != 365*24*time.Hour {
		t.Errorf("%s, %v", facts.TimeLimit, err)
	}
}
