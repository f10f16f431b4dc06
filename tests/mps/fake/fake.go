// SPDX-License-Identifier: Apache-2.0

// Package fake behaves as nvidia-cuda-mps-control and nvidia-cuda-mps-server do
// where gresd uses them: -f runs the control daemon in the foreground, -M as well lets
// one server take programs of all users, and commands be root's alone; without
// arguments commands are read from the standard input and sent to it. It knows
// no CUDA. A file "behave" beside the program, of words, makes it misbehave.
package fake

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Names of the two programs.
const (
	Control = "nvidia-cuda-mps-control"
	Server  = "nvidia-cuda-mps-server"
)

// Client is what a program says that wants to be a client: the answer is its server's
// process id. The real one has another way for that.
const Client = "client"

// Words of the file "behave".
const (
	Fail      = "fail"     // the daemon ends at once, with a message
	Mute      = "mute"     // the daemon makes no socket
	Hang      = "hang"     // commands are taken and never answered
	Stay      = "stay"     // quit and SIGTERM do nothing; servers stay too
	Stubborn  = "stubborn" // the server alone does not heed SIGTERM
	behaviour = "behave"   // the file
	pidFile   = Control + ".pid"
)

// IsName says whether a program of this name is one of the two.
func IsName(program string) bool {
	name := filepath.Base(program)
	return name == Control || name == Server
}

// Main does what the program's name and arguments say; it returns the exit code.
func Main() int {
	switch {
	case filepath.Base(os.Args[0]) == Server:
		return server()
	case len(os.Args) == 1:
		return client(os.Stdin, os.Stdout)
	case os.Args[1] == "-f" && (len(os.Args) == 2 || len(os.Args) == 3 && os.Args[2] == "-M"):
		d := daemon{
			everyone: len(os.Args) == 3, percent: 100, servers: map[int]float64{}, processes: map[int]*exec.Cmd{}, quit: make(chan struct{}),
		}
		return d.run()
	}
	fmt.Fprintln(os.Stderr, "usage: "+Control+" [-f [-M]]")
	return 1
}

func behaves(word string) bool {
	self, err := os.Executable()
	if err != nil {
		return false
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(self), behaviour))
	return err == nil && slices.Contains(strings.Fields(string(text)), word)
}

// Behave sets the words for the programs in a folder.
func Behave(dir string, words ...string) error {
	return os.WriteFile(filepath.Join(dir, behaviour), []byte(strings.Join(words, " ")), 0o644)
}

func pipeDir() string {
	if dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); dir != "" {
		return dir
	}
	return "/tmp/nvidia-mps"
}

func socket() string { return filepath.Join(pipeDir(), "control") }

// client sends each line and prints the answer.
func client(in io.Reader, out io.Writer) int {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		conn, err := net.Dial("unix", socket())
		if err != nil {
			fmt.Fprintln(out, "Cannot find MPS control daemon process")
			return 1
		}
		_, err = fmt.Fprintln(conn, lines.Text())
		var answer []byte
		if err == nil {
			answer, err = io.ReadAll(conn)
		}
		_ = conn.Close()
		if err != nil {
			fmt.Fprintln(out, err)
			return 1
		}
		_, _ = out.Write(answer)
	}
	return 0
}

// daemon is the control daemon.
type daemon struct {
	everyone  bool // who is not root may only be a client
	mu        sync.Mutex
	percent   float64
	servers   map[int]float64 // percentages by process id
	processes map[int]*exec.Cmd
	once      sync.Once
	quit      chan struct{}
}

func (d *daemon) run() int {
	if behaves(Fail) {
		fmt.Println("Failed to start: no device")
		return 1
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if behaves(Mute) {
		<-signals
		return 0
	}
	if conn, err := net.Dial("unix", socket()); err == nil {
		_ = conn.Close()
		fmt.Println("An instance of this daemon is already running")
		return 1
	}
	_ = os.Remove(socket())
	listener, err := net.Listen("unix", socket())
	if err == nil {
		err = os.Chmod(socket(), 0o666) // as the real one's: the folder keeps others out
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(pipeDir(), pidFile), []byte(strconv.Itoa(os.Getpid())), 0o644)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go d.accept(listener)
	for {
		select {
		case <-d.quit:
		case <-signals:
			if behaves(Stay) {
				continue
			}
		}
		_ = listener.Close()
		d.endServers()
		return 0
	}
}

func (d *daemon) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go func() {
			defer conn.Close()
			line, err := bufio.NewReader(conn).ReadString('\n')
			for behaves(Hang) {
				time.Sleep(50 * time.Millisecond)
			}
			if words := strings.Fields(line); err == nil && (!d.everyone || isRoot(conn) || slices.Equal(words, []string{Client})) {
				_, _ = io.WriteString(conn, d.command(words))
			} else if err == nil {
				fmt.Fprintln(conn, "Command failed: permission denied")
			}
		}()
	}
}

func isRoot(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return false
	}
	root := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		root = err == nil && cred.Uid == 0
	})
	return err == nil && root
}

func (d *daemon) command(words []string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(words) == 0 {
		return ""
	}
	number := func(i int) (float64, bool) {
		if i >= len(words) {
			return 0, false
		}
		n, err := strconv.ParseFloat(words[i], 64)
		return n, err == nil
	}
	switch words[0] {
	case "get_server_list":
		var out strings.Builder
		for pid := range d.servers {
			fmt.Fprintln(&out, pid)
		}
		return out.String()
	case "start_server":
		return d.start()
	case Client:
		if len(d.servers) == 0 {
			if text := d.start(); text != "" {
				return text
			}
		}
		for pid := range d.servers {
			return fmt.Sprintln(pid)
		}
	case "set_default_active_thread_percentage":
		if n, ok := number(1); ok && n > 0 && n <= 100 {
			d.percent = n
			return fmt.Sprintf("%.1f\n", n)
		}
	case "get_default_active_thread_percentage":
		return fmt.Sprintf("%.1f\n", d.percent)
	case "set_active_thread_percentage":
		pid, _ := number(1)
		n, ok := number(2)
		if _, known := d.servers[int(pid)]; known && ok && n > 0 && n <= 100 {
			d.servers[int(pid)] = n
			return fmt.Sprintf("%.1f\n", n)
		}
	case "get_active_thread_percentage":
		pid, _ := number(1)
		if n, known := d.servers[int(pid)]; known {
			return fmt.Sprintf("%.1f\n", n)
		}
	case "quit":
		if !behaves(Stay) {
			d.once.Do(func() { close(d.quit) })
		}
		return ""
	}
	return "Command failed: " + strings.Join(words, " ") + "\n"
}

// start starts a server, in a session of its own so that only what gresd goes
// by can find it. d.mu is held.
func (d *daemon) start() string {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args[0] = Server
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err.Error() + "\n"
	}
	d.servers[cmd.Process.Pid], d.processes[cmd.Process.Pid] = d.percent, cmd
	go func() {
		_ = cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.servers, cmd.Process.Pid)
		delete(d.processes, cmd.Process.Pid)
	}()
	return ""
}

func (d *daemon) endServers() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, cmd := range d.processes {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
}

// server waits for its end.
func server() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	for range signals {
		if !behaves(Stay) && !behaves(Stubborn) {
			return 0
		}
	}
	return 0
}
