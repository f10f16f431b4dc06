// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// JobFacts is what slurmctld says of one job on one node.
type JobFacts struct {
	JobID     uint32
	UID, GID  uint32
	User      string
	Account   string // "" where there is none
	Partition string
	State     string // "RUNNING", "CONFIGURING", …
	// Comment is the user's, with what job_submit.lua added; "" where there is
	// none. It is the user's own text: believe only what the shards cover.
	Comment string
	// MayAskForShards says that the record has such a request, or words of the job's
	// user that look like one: [Client.Asked] knows.
	MayAskForShards bool
	// Explained says that the job has a line of [Client.Explain]. Its user can
	// imitate it.
	Explained bool
	HetJobID  uint32 // 0: not a component of a het job
	Batch     bool
	Restarts  uint32
	// TimeLimit is how long the job may run; 0: for ever, or not known.
	TimeLimit time.Duration
	NodeList  string // all nodes of the job, "n[1-2]"
	// OnNode says whether the node asked for is one of them.
	OnNode bool
	// Units are the shards on each card of the node, by Slurm's index; nil when
	// the job holds none there.
	Units map[int]gpu.Share
	// WholeCards are the indexes of cards of the node allocated as gres/gpu,
	// rising.
	WholeCards []int
	// Counted is the count of gres/vgpu on the node, where that is a plain
	// count (placement = "gresd"), over all types.
	Counted gpu.Share
	// CountedTypes are the types of cards that the count is of, sorted; nil where
	// gres.conf gives the count no type.
	CountedTypes []string
}

// Het says whether the job is a component of a het job.
func (f JobFacts) Het() bool { return f.HetJobID != 0 }

// Several says whether the job may have several nodes: "n[1-2]", "a,b".
func (f JobFacts) Several() bool { return strings.ContainsAny(f.NodeList, ",[") }

// Holds says whether the job holds GPU resources on the node.
func (f JobFacts) Holds() bool {
	return len(f.Units) != 0 || len(f.WholeCards) != 0 || f.Counted != 0
}

// LostShares says that the job was started without the shards that it seems to ask for.
func (f JobFacts) LostShares() bool { return f.OnNode && f.MayAskForShards && !f.Holds() }

// Completing is the state of a job that has ended, as long as not all nodes have said that their
// Epilogs have.
const Completing = "COMPLETING"

// liveStates are those in which a job holds its resources on a node.
var liveStates = []string{
	"RUNNING", "SUSPENDED", Completing, "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING",
}

// Lives says whether the job holds resources of the node asked for.
func (f JobFacts) Lives() bool { return f.OnNode && slices.Contains(liveStates, f.State) }

// The text of scontrol has no quoting. What a user can write freely is the job
// name, which comes before everything, and the command, folders and comment,
// which come last. So:
//   - a record starts at a line "JobId=<id> ", once;
//   - the head ends at afterHead, which must be there once: whoever wants to
//     imitate a whole record has to write it a second time;
//   - in the head, each key below comes once: a job name that holds one of
//     them makes it two;
//   - allocations count only after NodeList, so those of a job name do not.
//
// What breaks a rule is refused, not guessed.
const afterHead = " MinCPUsNode="

var headKeys = []string{"UserId", "GroupId", "MCS_label", "Account", "JobState", "Restarts", "BatchFlag", "Partition", "NodeList"}

// errForged is for a job whose own words look like scontrol's.
var errForged = errors.New("its name, command or comment imitates the output of scontrol; rename the job")

// ParseJob reads the output of "scontrol show job -d -o <jobID>": the line of
// exactly that job (an array or het leader prints several), with what it holds
// on the named node. Errors: ErrNoJob, or what could not be understood.
func ParseJob(text string, jobID uint32, node string) (JobFacts, error) {
	record, err := findRecord(text, jobID)
	var f JobFacts
	var allocations []string
	if err == nil {
		f, allocations, err = parseRecord(record, jobID)
	}
	if err == nil {
		f.OnNode, err = HostlistContains(f.NodeList, node)
	}
	if err == nil {
		err = f.readAllocations(allocations, node)
	}
	if err != nil {
		return JobFacts{}, fmt.Errorf("read job %d: %w", jobID, err)
	}
	return f, nil
}

// parseRecord reads what is the same on all nodes, and returns the words of the allocations.
func parseRecord(record string, jobID uint32) (JobFacts, []string, error) {
	head, tail, err := cutHead(record)
	if err != nil {
		return JobFacts{}, nil, err
	}
	values, allocations, err := readHead(head)
	if err != nil {
		return JobFacts{}, nil, err
	}
	f := JobFacts{
		JobID:     jobID,
		Account:   values["Account"],
		Partition: values["Partition"],
		State:     values["JobState"],
		NodeList:  values["NodeList"],
		Batch:     values["BatchFlag"] != "0", // Slurm counts its starts there
		Explained: explained(tail),
		TimeLimit: timeLimit(last(head, "TimeLimit")), // what its name holds comes before

		MayAskForShards: nodeShards.MatchString(tail),
	}
	f.Comment = comment(tail, f.Batch)
	if err := f.readNumbers(head, values); err != nil {
		return JobFacts{}, nil, err
	}
	return f, allocations, nil
}

// cutHead parts a record at afterHead.
func cutHead(record string) (head, tail string, err error) {
	head, tail, found := strings.Cut(record, afterHead)
	if !found {
		return "", "", fmt.Errorf("scontrol printed no%s (a line break in its name?): %q", afterHead, clip(record))
	}
	if strings.Contains(tail, afterHead) {
		return "", "", errForged
	}
	return head, tail, nil
}

var nodeShards = regexp.MustCompile(` TresPerNode=\S*shard`)

// timeLimit reads "1-02:03:04"; "UNLIMITED" and what cannot be read are 0.
func timeLimit(text string) time.Duration {
	days, clock, found := strings.Cut(text, "-")
	if !found {
		days, clock = "0", text
	}
	var h, m, sec uint16
	d, err := strconv.ParseUint(days, 10, 16)
	if _, scan := fmt.Sscanf(clock, "%d:%d:%d", &h, &m, &sec); err != nil || scan != nil {
		return 0
	}
	return time.Duration(d)*24*time.Hour + time.Duration(h)*time.Hour + time.Duration(m)*time.Minute + time.Duration(sec)*time.Second
}

// explained says whether an admin comment, or what looks like one, has words of
// Explain.
func explained(tail string) bool {
	_, rest, found := strings.Cut(tail, " AdminComment=")
	return found && strings.Contains(rest, ownWords)
}

var recordStart = regexp.MustCompile(`(?m)^JobId=\d+ `)

// findRecord returns the text of one job.
func findRecord(text string, jobID uint32) (string, error) {
	records := slices.DeleteFunc(recordsOf(recordStart, text), func(record string) bool {
		return !strings.HasPrefix(record, "JobId="+id(jobID)+" ")
	})
	switch len(records) {
	case 0:
		return "", ErrNoJob
	case 1:
		return strings.TrimRight(records[0], "\n"), nil
	}
	return "", errForged
}

// readHead returns the values of headKeys, and the words after NodeList, among
// which are the allocations. Words without a key belong to the value before
// them ("Reason=launch failed"), which is none that is read here.
func readHead(head string) (map[string]string, []string, error) {
	values := map[string]string{}
	words := strings.Fields(head)
	allocations := words[len(words):]
	for i, word := range words {
		key, value, found := strings.Cut(word, "=")
		if !found || !slices.Contains(headKeys, key) {
			continue
		}
		if _, twice := values[key]; twice {
			return nil, nil, errForged
		}
		values[key] = null(value)
		if key == "NodeList" {
			allocations = words[i+1:]
		}
	}
	for _, key := range headKeys {
		if _, given := values[key]; !given {
			return nil, nil, fmt.Errorf("scontrol printed no %s: %q", key, clip(head))
		}
	}
	return values, allocations, nil
}

var (
	// Names of users and groups can hold spaces, where a directory service has
	// such; their keys are known to come once.
	owners    = regexp.MustCompile(`\sUserId=(.*)\((\d+)\) GroupId=.*\((\d+)\) MCS_label=`)
	hetLeader = regexp.MustCompile(`^JobId=\d+ HetJobId=(\d+) `)
)

func (f *JobFacts) readNumbers(head string, values map[string]string) (err error) {
	number := func(key, text string) uint32 {
		n, parseErr := strconv.ParseUint(text, 10, 32)
		if parseErr != nil && err == nil {
			err = fmt.Errorf("scontrol printed %s=%q, which is no number", key, text)
		}
		return uint32(n)
	}
	who := owners.FindStringSubmatch(head)
	if who == nil {
		return fmt.Errorf("scontrol printed UserId=%s GroupId=%s, want name(number)", values["UserId"], values["GroupId"])
	}
	f.User, f.UID = null(who[1]), number("UserId", who[2])
	f.GID = number("GroupId", who[3])
	f.Restarts = number("Restarts", values["Restarts"])
	// Only what stands before the job name: the name can hold these as well.
	if leader := hetLeader.FindStringSubmatch(head); leader != nil {
		f.HetJobID = number("HetJobId", leader[1])
	}
	return err
}

// null turns Slurm's words for nothing into "".
func null(s string) string {
	if s == "(null)" || s == "N/A" {
		return ""
	}
	return s
}

// afterComment are keys that can follow the comment of a job that is not a
// batch job, in releases from 22.05 to 26.05.
var afterComment = regexp.MustCompile(` (?:Extra|StdErr|StdIn|StdOut|Power|SegmentSize|Switches|BurstBuffer|CronJob|OOMKillStep|` +
	`CpusPerTres|MemPerTres|TresBind|TresFreq|TresPerJob|TresPerNode|TresPerSocket|TresPerTask|MailUser|NtasksPerTRES|Container|` +
	`ContainerType|SELinuxContext|ResvPorts)=`)

// comment returns the job's comment. A user who writes " Comment=" elsewhere
// can only replace words of their own.
func comment(tail string, batch bool) string {
	const key = " Comment="
	start := strings.LastIndex(tail, key)
	if start < 0 {
		return ""
	}
	text := tail[start+len(key):]
	if end := strings.LastIndex(text, " StdErr="); batch && end >= 0 {
		text = text[:end]
		if extra := strings.LastIndex(text, " Extra="); extra >= 0 {
			text = text[:extra]
		}
	} else if at := afterComment.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	return null(strings.TrimSpace(text))
}

// last returns the value of the last key=value of that key.
func last(text, key string) string {
	start := strings.LastIndex(text, " "+key+"=")
	if start < 0 {
		return ""
	}
	words := strings.Fields(text[start:])
	return null(strings.TrimPrefix(words[0], key+"="))
}

func clip(s string) string {
	return s[:min(len(s), 200)]
}
