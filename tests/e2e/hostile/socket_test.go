// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

var socketAttacks = []attack{
	{"ask gresd for what is root's, with forged job ids, users and nodes", rights, "", func(s *siege) tally {
		got := s.attack(carol, "forge", fmt.Sprint(s.victim))
		got.add(s.attackInside("forge", fmt.Sprint(s.victim)))
		return got
	}},
	{"be somebody else at the socket: forged credentials, descriptors, a connection that another has opened", kernel, "", func(s *siege) tally {
		return s.attack(alice, "impersonate", fmt.Sprint(s.victim))
	}},
	{"run `vgpu-prolog` by hand as Prolog or Epilog of another's job", rights, "", func(s *siege) tally {
		var t tally
		const noCard = "export CUDA_VISIBLE_DEVICES=NoDevFiles" // takes, and gives nothing
		for _, role := range []string{"prolog_slurmd", "epilog_slurmd", "vgpu_late_prolog", "prolog_task"} {
			r := s.As(alice, "env", "SLURM_SCRIPT_CONTEXT="+role, fmt.Sprintf("SLURM_JOB_ID=%d", s.victim), "SLURM_JOB_UID=33", "SLURM_JOB_USER=root",
				"SLURM_JOB_GPUS=0,1", "SPANK_VGPU_MEM=80G", "SLURM_CONF=/etc/slurm/slurm.conf", cluster.Dir+"/bin/vgpu-prolog")
			t.note(strings.Contains(r.Err, "only root") || strings.Contains(r.Out, "exit 1") || role == "prolog_task" && !strings.Contains(strings.ReplaceAll(r.Out, noCard, ""), "export"),
				"%s: %s", role, r)
		}
		return t
	}},
	{"malformed requests: broken, deep, binary, twice, cut, with unknown fields or endless numbers", rights, "", func(s *siege) tally {
		n := 1500
		if isLong() {
			n = 60000
		}
		var got tally
		worst := s.nuisance(func() { got = s.attack(carol, "malformed", fmt.Sprint(n)) })
		got.Said = fmt.Sprintf("root waited %s at most", worst.Round(time.Millisecond))
		return got
	}},
	{"giant requests: lines of 1 to 64 MiB, without an end, or thousands without reading one answer", rights, "", func(s *siege) tally {
		before := memory(s.gresd)
		var got tally
		worst := s.nuisance(func() { got = s.attack(carol, "giant") })
		grown := memory(s.gresd) - before
		got.note(grown < 64<<20, "gresd has grown by %d MiB", grown>>20)
		got.Said = fmt.Sprintf("gresd grew by %d MiB, root waited %s at most", grown>>20, worst.Round(time.Millisecond))
		return got
	}},
	{"questions without a pause, from every connection that a user may have", rights, "", func(s *siege) tally {
		var got tally
		worst := s.nuisance(func() { got = s.attack(carol, "questions", "700ms") })
		got.note(worst < longestAnswer, "root waited %s", worst)
		got.Said += fmt.Sprintf(", root waited %s at most", worst.Round(time.Millisecond))
		return got
	}},
}

func init() {
	agents["forge"] = func(args []string) tally { return forge(number(args[0])) }
	agents["impersonate"] = func(args []string) tally { return impersonate(number(args[0])) }
	agents["malformed"] = func(args []string) tally { return malformed(number(args[0])) }
	agents["giant"] = func([]string) tally { return giant() }
	agents["questions"] = func(args []string) tally {
		d, _ := time.ParseDuration(args[0])
		return questions(d)
	}
}

func number(text string) int { n, _ := strconv.Atoi(text); return n }

// memory is what a process has in memory, in bytes.
func memory(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// exchange sends a line as it is and returns the answer.
func exchange(line []byte) (wire.Reply, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return wire.Reply{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
	if _, err := conn.Write(line); err != nil {
		return wire.Reply{}, err
	}
	return wire.ReadReply(bufio.NewReader(conn))
}

func ask(req any) (wire.Reply, error) {
	line, err := json.Marshal(req)
	if err != nil {
		return wire.Reply{}, err
	}
	return exchange(append(line, '\n'))
}

// forge asks for everything with every forged name.
func forge(victim int) tally {
	var t tally
	own := uint32(os.Getuid())
	for _, op := range []wire.Op{wire.OpGrant, wire.OpRelease, wire.OpSet, wire.OpCordon, wire.OpUncordon} {
		for _, job := range []uint32{uint32(victim), 1, 4_000_000, 1<<32 - 1} {
			for _, uid := range []uint32{0, own, 1<<32 - 1} {
				rep, err := ask(wire.Request{
					Op: op, JobID: job, UID: uid, User: "root", GPUs: []int{0, 1}, Node: "vgpu-node", Conf: "/etc/slurm/slurm.conf",
					Restart: 7, Cores: 100, Card: "0", Reason: "hostile", Options: wire.Options{Mem: "80G"},
				})
				t.note(err == nil && !rep.OK && strings.Contains(rep.Message, "only root"), "%s of job %d as user %d: %+v, %v", op, job, uid, rep, err)
			}
		}
	}
	for _, req := range []wire.Request{{Op: wire.OpJobs}, {Op: wire.OpJobs, Processes: true, UID: 0}, {Op: wire.OpJobs, JobID: uint32(victim), User: "root"}} {
		rep, err := ask(req)
		foreign := false
		for _, j := range rep.Jobs {
			foreign = foreign || j.UID != own
		}
		t.note(err == nil && !foreign, "jobs: %+v, %v", rep.Jobs, err)
	}
	rep, err := ask(wire.Request{Op: wire.OpExplain, JobID: uint32(victim)})
	t.note(err == nil && !rep.OK && rep.Explain == nil, "explain of job %d: %+v, %v", victim, rep, err)
	rep, err = ask(wire.Request{Op: wire.OpExplain, GRES: "vgpu:30"})
	t.note(err == nil && rep.Explain != nil, "explain of a request: %+v, %v", rep, err)
	if rep.Explain != nil {
		for _, c := range rep.Explain.Cards {
			t.note(len(c.JobIDs) == 0 || own != 65534, "explain names jobs %v", c.JobIDs)
		}
	}
	rep, err = ask(wire.Request{Op: wire.OpPing, UID: 0, JobID: uint32(victim)})
	t.note(err == nil && rep.PID == int32(os.Getpid()), "ping: process %d is told to be %d, %v", os.Getpid(), rep.PID, err)
	return t
}

// impersonate speaks as another process or user would.
func impersonate(victim int) tally {
	var t tally
	line, _ := json.Marshal(wire.Request{Op: wire.OpRelease, JobID: uint32(victim)})
	line = append(line, '\n')
	send := func(oob []byte) (wire.Reply, error) {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			return wire.Reply{}, err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, _, err := conn.WriteMsgUnix(line, oob, nil); err != nil {
			return wire.Reply{}, err
		}
		return wire.ReadReply(bufio.NewReader(conn))
	}
	for _, cred := range []unix.Ucred{{Pid: 1}, {Pid: int32(os.Getpid())}, {Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: 0}} {
		rep, err := send(unix.UnixCredentials(&cred))
		t.note(err != nil || !rep.OK, "release with credentials %+v: %+v", cred, rep)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		return t
	}
	defer null.Close()
	fds := make([]int, 250)
	for i := range fds {
		fds[i] = int(null.Fd())
	}
	for range 20 { // descriptors that gresd does not take must not become its own
		rep, err := send(unix.UnixRights(fds...))
		t.note(err != nil || !rep.OK, "release with descriptors: %+v", rep)
	}
	// A socket at both ends: whoever made the connection asks, not who writes to it.
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return t
	}
	defer conn.Close()
	file, err := conn.File()
	if err != nil {
		return t
	}
	defer file.Close()
	_, err = file.Write(line)
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	rep, err2 := wire.ReadReply(bufio.NewReader(conn))
	t.note(err != nil || err2 != nil || !rep.OK, "release over a descriptor: %+v", rep)
	return t
}

// seeds of broken requests.
var seeds = []string{
	`{"op":"ping"}`, `{"op":"jobs","processes":true}`, `{"op":"explain","gres":"vgpu:30","options":{"mem":"8G","mode":"soft:40"}}`,
	`{"op":"grant","job_id":7,"uid":33,"gpus":[0,1],"options":{"mem":"8G"},"node":"n1","conf":"/etc/slurm/slurm.conf"}`,
	`{"op":"set","job_id":7,"cores":50}`, `{"op":"cordon","card":"0","reason":"x"}`, `{"op":"topo"}`, `{"op":"status"}`,
}

// broken are lines that are wrong in one way each.
func broken() []string {
	deep := strings.Repeat(`{"options":`, 5000)
	return []string{
		"", " ", "\x00", "null", "[]", "{}", `"op"`, "{", "}", `{"op"`, `{"op":}`, `{"op":"ping"`, `{"op":"ping"}{"op":"ping"}`, `{"op":"ping"} x`,
		`{"op":"ping","op":"release","job_id":7}`, `{"OP":"release","Job_Id":7}`, `{"op":["ping"]}`, `{"op":{"ping":1}}`, `{"op":"ping","uid":-1}`,
		`{"op":"release","job_id":1e999}`, `{"op":"release","job_id":4294967296}`, `{"op":"release","job_id":7.5}`, `{"op":"release","job_id":"7"}`,
		`{"op":"explain","gres":"vgpu:99999999999999999999"}`, `{"op":"explain","gres":"vgpu:-1"}`, `{"op":"explain","gres":"vgpu:30","options":{"cards":"16"}}`,
		`{"op":"explain","gres":"vgpu:30\u0000"}`, `{"op":"explain","gres":"vgpu:\ud800"}`, `{"op":"ping","user":"\u001b[2J"}`, `{"op":"ping","user":"` + strings.Repeat("a", 300) + `"}`,
		`{"op":"grant","job_id":7,"gpus":[` + strings.Repeat("1,", 3000) + `1]}`, deep, strings.Repeat("[", 9000), `{"op":"\xff\xfe"}`, `{"op":"ping","conf":"relative"}`,
	}
}

// malformed sends broken lines and random changes of good ones. Each must be
// answered with an error, or be a question that a user may ask.
func malformed(n int) tally {
	var t tally
	harmless := func(rep wire.Reply, err error) bool {
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() {
			return false // no answer is an answer that somebody waits for
		}
		return err != nil || !rep.OK || rep.Result == ""
	}
	for _, line := range broken() {
		rep, err := exchange([]byte(line + "\n"))
		t.note(harmless(rep, err), "%.60q: %+v, %v", line, rep, err)
	}
	random := rand.New(rand.NewPCG(uint64(os.Getuid()), 1))
	for i := range n {
		line := []byte(seeds[random.IntN(len(seeds))])
		for range 1 + random.IntN(6) {
			at := random.IntN(len(line))
			switch random.IntN(5) {
			case 0:
				line[at] = byte(random.IntN(256))
			case 1:
				line = append(line[:at], line[at+1:]...)
			case 2:
				line = append(line[:at], append([]byte{byte(random.IntN(256))}, line[at:]...)...)
			case 3:
				line = append(line[:at], append(bytes.Repeat([]byte(`9`), random.IntN(30)), line[at:]...)...)
			case 4:
				line = append(line, line[at:]...)
			}
			if len(line) == 0 {
				line = []byte("x")
			}
		}
		rep, err := exchange(append(line, '\n'))
		t.note(harmless(rep, err), "%d: %.80q: %+v, %v", i, line, rep, err)
	}
	return t
}

// giant sends more than gresd may keep.
func giant() tally {
	var t tally
	piece := bytes.Repeat([]byte("a"), 1<<20)
	for _, mib := range []int{1, 8, 64} {
		for _, head := range []string{"", `{"op":"ping","user":"`} {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				t.note(false, "%v", err)
				continue
			}
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, err = io.WriteString(conn, head)
			sent := 0
			for sent < mib && err == nil {
				_, err = conn.Write(piece)
				sent++
			}
			rep, readErr := wire.ReadReply(bufio.NewReader(conn))
			t.note(err != nil && (readErr != nil || !rep.OK), "%d MiB were taken: %+v", sent, rep)
			conn.Close()
		}
	}
	// Questions whose answers nobody reads: gresd stops to read when it cannot write.
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.note(false, "%v", err)
		return t
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	sent, line := 0, []byte(strings.Repeat(`{"op":"status"}`+"\n", 100))
	for err == nil && sent < 64<<20 {
		var n int
		n, err = conn.Write(line)
		sent += n
	}
	t.note(err != nil, "%d MiB of questions were taken without an answer read", sent>>20)
	return t
}

// questions asks what costs gresd most, on as many connections as it allows.
func questions(how time.Duration) tally {
	var t tally
	lines := []string{
		`{"op":"explain","gres":"vgpu:1","options":{"cards":"1","policy":"topology"}}`, `{"op":"jobs","processes":true}`, `{"op":"status"}`, `{"op":"topo"}`,
	}
	end := time.Now().Add(how)
	counts := make(chan int)
	const connections = 32
	for i := range connections {
		go func() {
			n := 0
			defer func() { counts <- n }()
			conn, err := net.Dial("unix", socket)
			if err != nil {
				return
			}
			defer conn.Close()
			r := bufio.NewReader(conn)
			for time.Now().Before(end) {
				if _, err := io.WriteString(conn, lines[(n+i)%len(lines)]+"\n"); err != nil {
					return
				}
				if _, err := wire.ReadReply(r); err != nil {
					return
				}
				n++
			}
		}()
	}
	all := 0
	for range connections {
		all += <-counts
	}
	t.note(all > 0, "no question was answered")
	t.Said = fmt.Sprintf("%d questions", all)
	return t
}
