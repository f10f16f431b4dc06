// SPDX-License-Identifier: Apache-2.0

// Package wire is the protocol between gresd and its clients (vgpu-prolog,
// vgpuctl): one JSON object a line each way, over a Unix stream socket.
//
// The package imports the standard library only, so that vgpu-prolog builds
// with CGO_ENABLED=0. It carries text and numbers; what they mean is decided by
// gresd/request and gresd/server.
package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxRequest is the longest request line, newline included.
	MaxRequest = 64 << 10
	// MaxReply is the longest reply line that a client accepts. A list of jobs
	// is longer than any request.
	MaxReply = 8 << 20
	// MaxCards is the most cards that one request may name.
	MaxCards = 64
	// maxText is the longest single text field of a request: all of them
	// together, each byte escaped, still fit one line.
	maxText = 1024
)

// ErrTooLong says that a line was longer than its limit.
var ErrTooLong = errors.New("line too long")

// Op names what a request asks for.
type Op string

// The operations. Grant, Release, Set, Cordon and Uncordon are for root only.
const (
	OpGrant   Op = "grant"
	OpRelease Op = "release"
	OpSet     Op = "set"
	OpStatus  Op = "status"
	OpJobs    Op = "jobs"
	OpTopo    Op = "topo"
	OpPing    Op = "ping"
	OpExplain Op = "explain"
	OpEnded   Op = "ended"
	OpReport  Op = "report"

	OpCordon   Op = "cordon"
	OpUncordon Op = "uncordon"
)

// Options are the words of the user, not yet parsed; "" means not given.
type Options struct {
	Mem      string `json:"mem,omitempty"`
	Cores    string `json:"cores,omitempty"`
	Cards    string `json:"cards,omitempty"`
	Mode     string `json:"mode,omitempty"`
	Priority string `json:"priority,omitempty"`
	Policy   string `json:"policy,omitempty"`
	Engine   string `json:"engine,omitempty"`
}

// Request is one line from a client.
type Request struct {
	Op        Op      `json:"op"`
	JobID     uint32  `json:"job_id,omitempty"`
	UID       uint32  `json:"uid,omitempty"`
	GID       uint32  `json:"gid,omitempty"`
	User      string  `json:"user,omitempty"`
	Account   string  `json:"account,omitempty"`
	Partition string  `json:"partition,omitempty"`
	GPUs      []int   `json:"gpus,omitempty"` // Slurm's card indexes (SLURM_JOB_GPUS)
	Options   Options `json:"options,omitzero"`
	Conf      string  `json:"conf,omitempty"`      // SLURM_CONF of the Prolog, "" for the default
	Node      string  `json:"node,omitempty"`      // Slurm's name of this node
	Cluster   string  `json:"cluster,omitempty"`   // ClusterName of Conf, "" where it is not known
	Restart   uint32  `json:"restart,omitempty"`   // SLURM_JOB_RESTART_COUNT
	Within    uint32  `json:"within,omitempty"`    // of Grant: seconds in which the answer is wanted; 0: no matter
	Cores     uint32  `json:"cores,omitempty"`     // of Set: the compute share, in hundredths of a card
	GRES      string  `json:"gres,omitempty"`      // of Explain without a job: "vgpu:30", as in --gres
	Card      string  `json:"card,omitempty"`      // of Cordon and Uncordon: a UUID or an index
	Reason    string  `json:"reason,omitempty"`    // of Cordon
	Processes bool    `json:"processes,omitempty"` // of Jobs: each process, too
	Order     uint64  `json:"-"`                   // gresd counts connections as they come; 0: not counted
}

// Result says what became of a request that gresd could serve.
type Result string

// Results of grant: Granted, None (the job asks for no share), Refused (the
// job's task will fail with the message), Requeued. Results of release:
// Released, None (nothing was held). Result of set, cordon and uncordon: Changed.
const (
	Granted  Result = "granted"
	None     Result = "none"
	Refused  Result = "refused"
	Requeued Result = "requeued"
	Released Result = "released"
	Changed  Result = "changed"
)

// Kind says whose fault an error is. Only a node fault may drain a node.
type Kind string

// The kinds of error.
const (
	KindUser Kind = "user"
	KindNode Kind = "node"
	// KindBusy: gresd is starting, or slurmctld does not answer; asked again, it may know.
	KindBusy Kind = "busy"
)

// Reply is one line from gresd.
type Reply struct {
	OK      bool         `json:"ok"`
	Result  Result       `json:"result,omitempty"`
	Kind    Kind         `json:"kind,omitempty"`
	Message string       `json:"message,omitempty"`
	PID     int32        `json:"pid,omitempty"`   // of ping: the caller's, in gresd's PID namespace
	Ended   []uint64     `json:"ended,omitempty"` // of ended: owner words of slots, see libvgpu/region.h
	Status  *Status      `json:"status,omitempty"`
	Jobs    []Job        `json:"jobs,omitempty"`
	Explain *Explanation `json:"explain,omitempty"`
	Report  *Report      `json:"report,omitempty"`
	// Topology is the answer to topo.
	Topology *Topology `json:"topology,omitempty"`
}

// Status is the answer to status.
type Status struct {
	Version   string    `json:"version"`
	Node      string    `json:"node"`
	Started   time.Time `json:"started"`
	Ready     bool      `json:"ready"`     // the first reconciliation is done
	Placement string    `json:"placement"` // who chooses the card: "slurm" or "gresd"
	Jobs      int       `json:"jobs"`
	Cards     []Card    `json:"cards"`
	// Problems are the things an administrator should look at, in words.
	Problems []string `json:"problems,omitempty"`
	// Scontrol is where gresd finds Slurm's command, SlurmProblem one of Problems: why it cannot ask
	// Slurm.
	Scontrol     string `json:"scontrol,omitempty"`
	SlurmProblem string `json:"slurm_problem,omitempty"`
}

// Card is one GPU of the node and how much of it is granted. Shares and cores
// are hundredths of the card.
type Card struct {
	UUID    string `json:"gpu_uuid"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	Type    string `json:"type"`
	Healthy bool   `json:"healthy"`       // it can be granted
	Why     string `json:"why,omitempty"` // it is not healthy, in words
	// MemoryBytes is what shares are taken of. It is above PhysicalBytes where
	// the site oversubscribes the card.
	MemoryBytes   uint64 `json:"memory_bytes"`
	PhysicalBytes uint64 `json:"memory_physical_bytes"`
	GrantedBytes  uint64 `json:"memory_granted_bytes"`
	Share         uint32 `json:"share"`
	Cores         uint32 `json:"cores"`
	Jobs          int    `json:"jobs"`
	CardUse
	// Slices is what the card makes of time slices, "obeyed" or "ignored", by a test; "": not
	// known. SlicesWhy is why it was not tested since this gresd started; "": it was.
	Slices    string `json:"slices,omitempty"`
	SlicesWhy string `json:"slices_why,omitempty"`
	// ComputePercent is what all jobs had of the card lately, by the driver's
	// samples; nil: not known. Throttled is how many jobs had throttled launches.
	ComputePercent *float64 `json:"compute_percent,omitempty"`
	Throttled      int      `json:"jobs_throttled"`
}

// Job is one record of the ledger, with what its processes do now.
type Job struct {
	JobID     uint32    `json:"job_id"`
	UID       uint32    `json:"uid"`
	User      string    `json:"user,omitempty"`
	Account   string    `json:"account,omitempty"`
	Partition string    `json:"partition,omitempty"`
	State     string    `json:"state"` // "granted" or "refused"
	Reason    string    `json:"reason,omitempty"`
	Mode      string    `json:"mode,omitempty"`
	Ceiling   uint32    `json:"ceiling,omitempty"`
	Priority  string    `json:"priority,omitempty"`
	Engine    string    `json:"engine,omitempty"` // "mps", "concurrent", or "" for the card's time
	Created   time.Time `json:"created"`
	Cards     []JobCard `json:"cards,omitempty"`
	// Messages are what the job was told while it ran, each "TIME TEXT".
	Messages []string `json:"messages,omitempty"`
}

// Who is the user of the job: the name, or where that is not known, the number.
func (j Job) Who() string { return cmp.Or(j.User, fmt.Sprint(j.UID)) }

// JobCard is what a job has and does on one card. UsedBytes, GPUSeconds and
// Processes are nil when the job's cache file could not be read.
type JobCard struct {
	UUID       string `json:"gpu_uuid"`
	Index      int    `json:"index"`
	Share      uint32 `json:"share"`
	Cores      uint32 `json:"cores"`
	LimitBytes uint64 `json:"memory_limit_bytes"`
	// PhysicalBytes is what of LimitBytes the card has of its own.
	PhysicalBytes uint64   `json:"memory_physical_bytes"`
	UsedBytes     *uint64  `json:"memory_used_bytes,omitempty"`
	GPUSeconds    *float64 `json:"gpu_seconds,omitempty"`
	Processes     *int     `json:"processes,omitempty"`
	SliceUS       uint32   `json:"slice_us"`
	Gate          bool     `json:"gate"`
	JobUse
	// In the last seconds: the percentage of the card's time that the job got, by the driver's
	// samples, and the percentage of time for which its launches were throttled. The latter is
	// above 100 if several processes wait at once. nil: not known.
	GotPercent       *float64 `json:"got_percent,omitempty"`
	ThrottledPercent *float64 `json:"throttled_percent,omitempty"`
}

// ReadRequest reads one line and decodes it strictly: one object, no unknown
// field, nothing after it, every field within bounds. It returns io.EOF when
// the client has closed the connection before the first byte of a line.
func ReadRequest(r *bufio.Reader) (Request, error) {
	line, err := readLine(r, MaxRequest)
	if err != nil {
		return Request{}, err
	}
	return DecodeRequest(line)
}

// DecodeRequest decodes one line, with or without its newline.
func DecodeRequest(line []byte) (Request, error) {
	var req Request
	if err := decode(line, &req, true); err != nil {
		return Request{}, fmt.Errorf("decode request: %w", err)
	}
	if err := req.check(); err != nil {
		return Request{}, fmt.Errorf("decode request: %w", err)
	}
	return req, nil
}

// WriteRequest writes one request line.
func WriteRequest(w io.Writer, req Request) error {
	if err := req.check(); err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	return writeLine(w, req, MaxRequest)
}

// ReadReply reads one reply line. Unknown fields are allowed, so that an older
// client can read the status of a newer gresd.
func ReadReply(r *bufio.Reader) (Reply, error) {
	line, err := readLine(r, MaxReply)
	if err != nil {
		return Reply{}, err
	}
	var rep Reply
	if err := decode(line, &rep, false); err != nil {
		return Reply{}, fmt.Errorf("decode reply: %w", err)
	}
	return rep, nil
}

// WriteReply writes one reply line.
func WriteReply(w io.Writer, rep Reply) error { return writeLine(w, rep, MaxReply) }

func (r Request) check() error {
	if !slices.Contains([]Op{OpGrant, OpRelease, OpSet, OpStatus, OpJobs, OpTopo, OpExplain, OpEnded, OpReport, OpCordon, OpUncordon, OpPing}, r.Op) {
		return fmt.Errorf("op: %q: want grant, release, set, status, jobs, topo, explain, ended, report, cordon, uncordon or ping", clip(string(r.Op), 60))
	}
	if (r.Op == OpGrant || r.Op == OpRelease || r.Op == OpSet || r.Op == OpEnded || r.Op == OpReport) && r.JobID == 0 {
		return fmt.Errorf("job_id: 0: %s wants a job id, e.g. 4217", r.Op)
	}
	if r.Op == OpSet && (r.Cores < 1 || r.Cores > 100) {
		return fmt.Errorf("cores: %d: want 1 to 100, e.g. 30", r.Cores)
	}
	if (r.Op == OpCordon || r.Op == OpUncordon) && r.Card == "" {
		return fmt.Errorf("card: \"\": %s wants a card, e.g. 0 or its UUID", r.Op)
	}
	if r.Op == OpExplain && (r.JobID == 0) == (r.GRES == "") {
		return errors.New("explain wants either a job id or a gres, e.g. vgpu:30")
	}
	if len(r.GPUs) > MaxCards {
		return fmt.Errorf("gpus: %d cards: want at most %d", len(r.GPUs), MaxCards)
	}
	for i, g := range r.GPUs {
		if g < 0 || g > 4095 {
			return fmt.Errorf("gpus: %d: want an index from 0 to 4095", g)
		}
		if slices.Contains(r.GPUs[:i], g) {
			return fmt.Errorf("gpus: %d: named twice", g)
		}
	}
	if r.Conf != "" && !strings.HasPrefix(r.Conf, "/") {
		return fmt.Errorf("conf: %q: want an absolute path, e.g. /etc/slurm/slurm.conf", clip(r.Conf, 60))
	}
	o := r.Options
	for _, f := range []struct{ name, text string }{
		{"user", r.User},
		{"account", r.Account},
		{"partition", r.Partition},
		{"conf", r.Conf},
		{"node", r.Node},
		{"cluster", r.Cluster},
		{"gres", r.GRES},
		{"card", r.Card},
		{"reason", r.Reason},
		{"options.mem", o.Mem},
		{"options.cores", o.Cores},
		{"options.cards", o.Cards},
		{"options.mode", o.Mode},
		{"options.priority", o.Priority},
		{"options.policy", o.Policy},
		{"options.engine", o.Engine},
	} {
		if err := checkText(f.text); err != nil {
			return fmt.Errorf("%s: %q: %w", f.name, clip(f.text, 60), err)
		}
	}
	return nil
}

// checkText keeps control characters out of logs, messages and metric labels.
func checkText(s string) error {
	switch {
	case len(s) > maxText:
		return fmt.Errorf("%d bytes: want at most %d", len(s), maxText)
	case !utf8.ValidString(s):
		return errors.New("not UTF-8")
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return errors.New("control character")
	}
	return nil
}

func clip(s string, most int) string {
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

func decode(line []byte, into any, strict bool) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' {
		return errors.New("want one JSON object a line")
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	if strict {
		dec.DisallowUnknownFields()
	}
	if err := dec.Decode(into); err != nil {
		// As text, and not all of it: a line that ends within its object is no
		// end of the connection, and JSON repeats a field that it does not know.
		return errors.New(clip(err.Error(), 200))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("text after the JSON object")
	}
	return nil
}

// readLine reads up to and including a newline. A line without its newline is
// an error: it may have been cut.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, fmt.Errorf("%w: want at most %d bytes", ErrTooLong, limit)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull) && len(line) == limit:
			return nil, fmt.Errorf("%w: want at most %d bytes", ErrTooLong, limit) // not even room for the newline
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

func writeLine(w io.Writer, v any, limit int) error {
	var line bytes.Buffer
	enc := json.NewEncoder(&line) // writes the newline
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if line.Len() > limit {
		return fmt.Errorf("encode: %w: %d bytes, want at most %d", ErrTooLong, line.Len(), limit)
	}
	_, err := w.Write(line.Bytes())
	return err
}
