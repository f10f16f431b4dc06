// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// folder is where one control daemon lives:
//
//	<dir>/<card>/<uid>/pipe   of the user, 0700: sockets; only this user gets in
//	<dir>/<card>/<uid>/log    of the user, 0700: NVIDIA's logs
//	<dir>/<card>/<uid>.json   of root, 0600: which process it is
//	<dir>/<card>/<uid>.out    of root, 0600: what the daemon prints
//
// All above pipe and log is root's: the user cannot put a link in their place. Of the
// daemon that is for everyone, <uid> is the word all, and they are root's as well: pipe
// is 0755, so that all users find the sockets and none can put others in their place.
type folder struct {
	dir string // <dir>/<card>
	uid string
}

const everyone = "all"

func folderOf(dir string, key Key) folder {
	name := strconv.FormatUint(uint64(key.UID), 10)
	if key.Everyone {
		name = everyone
	}
	return folder{filepath.Join(dir, string(key.Card)), name}
}

func (f folder) base() string   { return filepath.Join(f.dir, f.uid) }
func (f folder) pipe() string   { return filepath.Join(f.base(), "pipe") }
func (f folder) logs() string   { return filepath.Join(f.base(), "log") }
func (f folder) socket() string { return filepath.Join(f.pipe(), "control") }
func (f folder) record() string { return filepath.Join(f.dir, f.uid+".json") }
func (f folder) output() string { return filepath.Join(f.dir, f.uid+".out") }

func (f folder) environment() []string {
	return []string{f.pipeVariable(), LogVariable + "=" + f.logs()}
}

func (f folder) pipeVariable() string { return PipeVariable + "=" + f.pipe() }

// make makes empty folders for a daemon of that user.
func (f folder) make(uid, gid uint32) error {
	if err := f.remove(); err != nil {
		return err
	}
	if err := f.makeBase(); err != nil {
		return err
	}
	for _, dir := range []string{f.pipe(), f.logs()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := os.Lchown(dir, int(uid), int(gid)); err != nil {
			return err
		}
	}
	if f.uid == everyone {
		return os.Chmod(f.pipe(), 0o755)
	}
	return nil
}

// ofCards is held while the folder of a card is removed, or one is made in it: it is
// removed with the last daemon of the card, while another one may be starting there.
var ofCards sync.Mutex

// makeBase makes what is root's.
func (f folder) makeBase() error {
	ofCards.Lock()
	defer ofCards.Unlock()
	for _, dir := range []string{filepath.Dir(f.dir), f.dir, f.base()} {
		// Passing through is for everybody, looking around for nobody.
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	return nil
}

// remove removes all of it, following no link of the user's.
func (f folder) remove() error {
	root, err := os.OpenRoot(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	errs := []error{removeTree(root, f.uid, mostRemoving)}
	for _, name := range []string{f.uid + ".out", f.uid + ".json"} {
		errs = append(errs, root.RemoveAll(name))
	}
	ofCards.Lock()
	defer ofCards.Unlock()
	_ = os.Remove(f.dir) // unless another user's is there
	return errors.Join(errs...)
}

// mostOutput is how much of what a daemon prints is kept: run_dir is memory.
const mostOutput = 64 << 10

func (f folder) cutOutput() {
	if info, err := os.Stat(f.output()); err == nil && info.Size() > mostOutput {
		_ = os.Truncate(f.output(), 0)
	}
}

// said is the end of what the daemon printed.
func (f folder) said() string {
	file, err := os.Open(f.output())
	if err != nil {
		return ""
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, mostOutput))
	return lastLine(string(text))
}

// record is what is kept of a running daemon, so that a gresd that was killed
// at any moment leaves none that the next one cannot find. It is written with
// PID 0 before the start, and with the process after it.
type record struct {
	Key   Key    `json:"key"`
	GID   uint32 `json:"gid"`
	Token string `json:"token"` // in the environment of the daemon and its servers, of nobody else
	identity
}

func (f folder) write(rec record) error {
	text, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	return atomicfile.Replace(f.record(), text, 0o600)
}

// previousDaemons reads the records below dir. One that cannot be read is removed: it
// was being written, so that no daemon had been started.
func previousDaemons(dir string) ([]record, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	if err != nil {
		return nil, err
	}
	var all []record
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var rec record
		if json.Unmarshal(text, &rec) != nil || folderOf(dir, rec.Key).record() != path || rec.Token == "" || rec.PID < 0 ||
			rec.Key.Everyone && rec.Key.UID != 0 {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		all = append(all, rec)
	}
	return all, nil
}
