// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/web"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

const gib = 1 << 30

func ptr[T any](v T) *T { return &v }

// scene is what a node does, step after step of two seconds.
type scene func(step int) (wire.Status, []wire.Job)

func card(index int) wire.Card {
	return wire.Card{
		UUID: fmt.Sprintf("GPU-%d0000000-1111-2222-3333-444455556666", index), Index: index, Name: "NVIDIA H200", Type: "h200", Healthy: true,
		MemoryBytes: 141 * gib, PhysicalBytes: 141 * gib, ComputePercent: ptr(0.0), CardUse: wire.CardUse{UsedBytes: ptr(uint64(gib / 2))},
	}
}

// on gives a job a part of a card. What it got is about mean, and waves.
func on(c *wire.Card, id uint32, user string, share uint32, mean float64, step int, memory, limit float64) wire.Job {
	got := math.Max(0, mean+3*math.Sin(float64(step)/7+float64(id))+1.5*math.Sin(float64(step)*1.7+float64(id)))
	if mean == 0 {
		got = 0
	}
	c.Share += share
	c.Cores += share
	c.Jobs++
	c.GrantedBytes += uint64(limit * gib)
	*c.UsedBytes += uint64(memory * gib)
	*c.ComputePercent += got
	procs := 1 + int(id)%3
	return wire.Job{
		JobID: id, UID: 1000 + id%7, User: user, Account: "phys", Partition: "gpu", State: "granted", Mode: "hard", Created: time.Unix(1790000000, 0),
		Cards: []wire.JobCard{{
			UUID: c.UUID, Index: c.Index, Share: share, Cores: share, LimitBytes: uint64(limit * gib), PhysicalBytes: uint64(limit * gib),
			UsedBytes: ptr(uint64(memory * gib)), GPUSeconds: ptr(float64(id%100)*97 + 2*float64(step)*mean/100), Processes: &procs, SliceUS: 2000,
			GotPercent: &got, ThrottledPercent: ptr(0.0), JobUse: wire.JobUse{AskedShare: share, AskedCores: share, LimitedBy: "program"},
		}},
	}
}

func status(cards ...wire.Card) wire.Status {
	jobs := 0
	for _, c := range cards {
		jobs += c.Jobs
	}
	return wire.Status{Version: "1.4.0", Node: "gpu17", Started: time.Now().Add(-50 * time.Hour), Ready: true, Placement: "slurm", Jobs: jobs, Cards: cards}
}

func empty(int) (wire.Status, []wire.Job) { return status(card(0), card(1)), nil }

func busy(step int) (wire.Status, []wire.Job) {
	a, b := card(0), card(1)
	jobs := []wire.Job{
		on(&a, 4217, "ann", 30, 29, step, 17.4, 20),
		on(&a, 4218, "bob", 50, 49, step, 61, 70),
		on(&a, 4230, "chris", 15, 4, step, 2.2, 21),
		on(&b, 4301, "ann", 40, 55, step, 30, 56),
		on(&b, 4302, "dora-with-a-long-name", 25, 12, step, 35.1, 35.25),
	}
	jobs[1].Cards[0].LimitedBy, jobs[1].Cards[0].ThrottledPercent = "limit", ptr(34.0)
	jobs[3].Mode, jobs[3].Ceiling = "soft", 80
	jobs[4].Cards[0].LimitedBy, jobs[4].Cards[0].DeprivedSeconds, jobs[4].Cards[0].Refused = "neighbors", ptr(14.0), ptr(uint64(3))
	jobs[4].Messages = []string{"12:00:01 vgpu: health: card 1: this job goes on"}
	a.Throttled = 1
	return status(a, b), jobs
}

func sick(step int) (wire.Status, []wire.Job) {
	a, b := card(0), card(1)
	jobs := []wire.Job{on(&a, 4217, "ann", 30, 29, step, 17.4, 20), on(&b, 4301, "<b>eve</b>", 40, 38, step, 30, 56)}
	b.Healthy, b.Why = false, "XID 79 at 12:03: the card has fallen off the bus"
	jobs[1].Cards[0].GotPercent, jobs[1].Cards[0].UsedBytes, jobs[1].Cards[0].Processes, jobs[1].Cards[0].GPUSeconds, jobs[1].Cards[0].ThrottledPercent = nil, nil, nil, nil, nil
	b.ComputePercent, b.UsedBytes = nil, nil
	st := status(a, b)
	st.Problems = []string{"card 1 (GPU-10000000): XID 79 at 12:03: the card has fallen off the bus: no new jobs; vgpuctl uncordon 1 when it is well"}
	return st, append(jobs, wire.Job{JobID: 4400, UID: 33, State: "refused", Reason: "vgpu: request: job 4400: --vgpu-mem: \"9Q\": want a size, e.g. 20G", Created: time.Now()})
}

// many has 200 jobs on eight cards.
func many(step int) (wire.Status, []wire.Job) {
	var cards []wire.Card
	var jobs []wire.Job
	for i := range 8 {
		c := card(i)
		for k := range 25 {
			id := uint32(5000 + 25*i + k)
			jobs = append(jobs, on(&c, id, fmt.Sprintf("user%d", id%17), 4, 3.6, step, 3, 5.5))
		}
		cards = append(cards, c)
	}
	return status(cards...), jobs
}

// own is what gresd tells a user of a card that he shares with others.
func own(step int) (wire.Status, []wire.Job) {
	st, jobs := busy(step)
	return st, jobs[:1]
}

const manyNodes = "gpu16"

// nodes is what a user sees from where he logs in.
func nodes(step int) (wire.Status, []wire.Job) {
	st, jobs := own(step)
	st.Node = manyNodes
	return st, jobs
}

var queue = []web.Waiting{
	{JobID: "4410", User: "ann", GRES: "vgpu:60", Reason: "Resources"},
	{JobID: "4411_[1-9]", User: "bob", GRES: "vgpu:30", Reason: "Priority"},
	{JobID: "4412", User: "chris", GRES: "vgpu:10", Reason: "QOSMaxGRESPerUser"},
}

// gresd answers on a socket as the daemon does, from a scene, and counts questions.
type gresd struct {
	socket string
	asked  atomic.Int64 // for a status

	mu    sync.Mutex
	scene scene
	step  int
}

func (g *gresd) play(s scene) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.scene = s
}

func (g *gresd) answer(req wire.Request) wire.Reply {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.scene == nil {
		return wire.Reply{Kind: wire.KindBusy, Message: "gresd is starting"}
	}
	if req.Op == wire.OpStatus {
		g.asked.Add(1)
		g.step++
	}
	st, jobs := g.scene(g.step)
	if req.Op == wire.OpStatus {
		return wire.Reply{OK: true, Status: &st}
	}
	return wire.Reply{OK: true, Jobs: jobs}
}

func startGresd(t *testing.T, s scene) *gresd {
	t.Helper()
	g := &gresd{socket: filepath.Join(t.TempDir(), "gresd.sock"), scene: s}
	l, err := net.Listen("unix", g.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if req, err := wire.ReadRequest(bufio.NewReader(conn)); err == nil {
				_ = wire.WriteReply(conn, g.answer(req))
			}
			conn.Close()
		}
	}()
	return g
}

// startProgram runs vgpuctl web, as it is built, and returns the address that it prints.
func startProgram(t *testing.T, g *gresd, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "../../build/bin/vgpuctl", append([]string{"--socket", g.socket, "web", "--no-queue", "--interval", "500ms"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("%v: want make build before", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if url := regexp.MustCompile(`http://\S+`).FindString(lines.Text()); url != "" {
			return url
		}
	}
	t.Fatal("it printed no address")
	return ""
}

// startPage serves a scene that five minutes have gone by in: the page's own server,
// whose clock runs ahead until then. An own viewer stays, so that the time goes on.
func startPage(t *testing.T, s scene, waiting []web.Waiting) string {
	t.Helper()
	step := 0
	begin := time.Now().Add(-5 * time.Minute)
	feed := &web.Feed{Every: time.Millisecond, Ask: func(ctx context.Context) (web.Sample, error) {
		if step++; step > steps {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		st, jobs := s(step)
		at := begin.Add(time.Duration(step) * 2 * time.Second)
		nodes := []top.Sample{{At: at, Status: st, Jobs: append([]wire.Job{}, jobs...)}}
		if st.Node == manyNodes { // the second is as vgpuctl has it that no node has answered
			nodes = append(nodes, top.Sample{At: at, Status: wire.Status{Node: "gpu18", Problems: []string{"no answer within 10s"}}, Jobs: []wire.Job{}})
		}
		return web.Sample{At: at, Nodes: nodes, Queue: waiting}, nil
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &web.Server{Token: web.NewToken(), Feed: feed}
	go server.Serve(t.Context(), l) //nolint:errcheck // the browser would say it
	url := "http://" + l.Addr().String() + "/?token=" + server.Token
	viewer := &http.Client{}
	if viewer.Jar, err = cookiejar.New(nil); err == nil {
		_, err = viewer.Get(url)
	}
	if err != nil {
		t.Fatal(err)
	}
	answer, err := viewer.Get("http://" + l.Addr().String() + server.Base() + "events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	lines := bufio.NewReader(answer.Body)
	last := fmt.Sprintf(`{"time":"%s"`, begin.Add(steps*2*time.Second).Format(time.RFC3339Nano))
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, last) {
			break
		}
	}
	go io.Copy(io.Discard, lines) //nolint:errcheck // it ends with the test
	return url
}

// steps are five minutes.
const steps = 150
