// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// journals are the paths of the journals of the ledger.
func (n *Node) journals(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(strings.TrimSuffix(n.Ledger(), ".json") + ".journal-*")
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// keep returns what puts the ledger back as it is now.
func (n *Node) keep(t *testing.T) (restore func()) {
	t.Helper()
	texts := map[string][]byte{}
	for _, path := range append(n.journals(t), n.Ledger()) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = text
	}
	return func() {
		t.Helper()
		for _, path := range n.journals(t) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		for path, text := range texts {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// damage tries a ledger of which one file has this text, and wants gresd to say
// these words and to lose nothing; after a reboot, the grants are gone too.
func (c *crash) damage(path string, text []byte, say string, reboot bool) {
	c.Helper()
	size := logSize(c.T, c.node)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		c.Fatal(err)
	}
	if reboot {
		if err := os.RemoveAll(c.node.run()); err != nil {
			c.Fatal(err)
		}
	}
	what := fmt.Sprintf("%s of %d bytes", filepath.Base(path), len(text))
	c.must(what, c.node.Start())
	c.must(what, c.record.CheckAlive())
	if said := logFrom(c.T, c.node, size); !strings.Contains(said, say) {
		c.Fatalf("%s: gresd does not say %q: %s", what, say, said)
	}
	c.node.Kill()
}

func eightJobs(t *testing.T) *crash {
	c := newCrash(t, "")
	c.node.Watch, c.record.NoSet = nil, true
	c.must("start", c.node.Start())
	for i := range 8 {
		job, err := c.one()
		if err != nil {
			t.Fatalf("job %d: %v", i, err)
		}
		end, err := c.node.Slurmstepd(job.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(end)
	}
	c.node.Kill()
	return c
}

// A ledger that ends too early, as after a power cut on a disk that lies, is not
// believed: it is rebuilt from the grants, or from Slurm where these are gone too.
// The end of a journal that is missing is made good from the grants.
func TestTornLedger(t *testing.T) {
	c := eightJobs(t)
	restore := c.node.keep(t)
	path := c.node.Ledger()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	tail, every, block := 16, 7, 400
	if long {
		tail, every, block = 130, 1, 64
	}
	cuts := func(text []byte, from int) (texts [][]byte) {
		for cut := from; cut < tail; cut += every {
			texts = append(texts, text[:len(text)-cut])
		}
		for at := 0; at < len(text); at += block {
			texts = append(texts, text[:at])
		}
		return texts
	}
	torn := cuts(whole, 2) // without the last line break nothing is missing
	for _, text := range torn {
		restore()
		c.damage(path, text, "torn", false)
		restore()
		c.damage(path, text, "torn", true)
	}
	t.Logf("snapshot torn at %d places, twice", len(torn))

	restore()
	journals := c.node.journals(t)
	if len(journals) != 1 {
		t.Fatalf("journals %q: want one", journals)
	}
	journal, err := os.ReadFile(journals[0])
	if err != nil {
		t.Fatal(err)
	}
	header := bytes.IndexByte(journal, '\n')
	torn = cuts(journal, 1)
	for _, text := range torn {
		restore()
		say := "was not finished"
		switch {
		case len(text) <= header:
			say = "torn"
		case bytes.HasSuffix(text, []byte("\n")):
			say = "" // nothing tells that there was more
		}
		c.damage(journals[0], text, say, false)
	}
	t.Logf("journal torn at %d places", len(torn))

	// One that was changed is no more believed than a snapshot.
	step := map[bool]int{false: 1500, true: 100}[long]
	for at := header + 40; at < bytes.LastIndexByte(journal[:len(journal)-1], '\n'); at += step {
		changed := bytes.Clone(journal)
		changed[at] ^= 1
		restore()
		c.damage(journals[0], changed, "is not what was written", false)
		restore()
		c.damage(journals[0], changed, "is not what was written", true)
	}
	restore()
	c.must("start", c.node.Start())
	c.check()
}

// A gresd that is older than its ledger does not start, and says what to do.
func TestDowngrade(t *testing.T) {
	c := newCrash(t, "")
	c.must("start", c.node.Start())
	if _, err := c.one(); err != nil {
		t.Fatal(err)
	}
	c.node.Kill()
	text, err := os.ReadFile(c.node.Ledger())
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(text), `"version":2`, `"version":3`, 1)
	if err := os.WriteFile(c.node.Ledger(), []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	size := logSize(t, c.node)
	if err := c.node.Start(); !errors.Is(err, ErrEnded) {
		t.Fatalf("start: %v", err)
	}
	for _, want := range []string{c.node.Ledger(), "version 3, this gresd reads version 2", "move the file away"} {
		if said := logFrom(t, c.node, size); !strings.Contains(said, want) {
			t.Errorf("%q lacks %q", said, want)
		}
	}
	// As it says.
	if err := os.Rename(c.node.Ledger(), c.node.Ledger()+".newer"); err != nil {
		t.Fatal(err)
	}
	c.must("start", c.node.Start())
	c.check()
}

// The first change after a start begins a journal, and a snapshot beside. gresd is killed at each
// point of it.
func TestKilledAtEachPointOfAFirstChange(t *testing.T) {
	const last = "unlink ledger.journal-#" // point
	wants := []string{
		"create ledger.journal-#", "write ledger.journal-#", "fsync ledger.journal-#", "fsync ",
		"create ledger.json.new", "write ledger.json.new", "fsync ledger.json.new", "rename ledger.json.new", last,
	}
	c := newCrash(t, "")
	c.must("start", c.node.Start())
	// A snapshot beside moves the numbers of points: its own are also named.
	for try := 0; ; try++ {
		at, kind := try-len(wants)+1, ""
		if try < len(wants) {
			at, kind = 0, wants[try]
		} else if !long {
			break
		}
		if !long && try%2 == 1 {
			continue
		}
		for range 2 {
			_, err := c.one()
			c.must("grant", err)
		}
		c.node.Kill()
		text, err := os.ReadFile(c.node.Ledger())
		c.must("ledger", err)
		c.killer.arm(0)
		c.must("start", c.node.Start())
		if now, err := os.ReadFile(c.node.Ledger()); err != nil || !bytes.Equal(now, text) {
			t.Fatalf("a start changes the ledger: %v", err)
		}
		c.killer.armKind(at, kind)
		if _, err = c.one(); err != nil && !errors.Is(err, ErrDead) {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); c.node.Alive() && !c.passed(last) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if c.node.Alive() && kind == "" && c.killer.reached() < at {
			break
		}
		c.node.Wait()
		c.recover()
	}
	c.killer.arm(0)
	c.check()
	c.report(map[bool]int{false: 4, true: 30}[long])
	for _, want := range wants {
		if long && c.killer.kinds[want] == 0 {
			t.Errorf("never killed at %q", want)
		}
	}
}
