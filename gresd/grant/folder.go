// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Names of the files in a job's folder.
const (
	grantFile   = "grant"
	cacheFile   = "cache"
	refusedFile = "refused"
	// environmentFile has lines NAME=VALUE for the environment of tasks; not every job has one.
	environmentFile = "environment"
)

// newPrefix is that of a folder until it is whole.
const newPrefix = "new-"

var modes = map[gpu.Mode]uint32{
	gpu.Off: libvgpu.ModeOff, gpu.Soft: libvgpu.ModeSoft, gpu.Hard: libvgpu.ModeHard,
}

var priorities = map[gpu.Priority]uint32{
	gpu.Normal: libvgpu.PrioNormal, gpu.High: libvgpu.PrioHigh, gpu.Low: libvgpu.PrioLow,
}

var engines = map[gpu.Engine]uint32{gpu.Concurrent: libvgpu.EngineConcurrent}

// SpecOf writes a record as a grant. A mode that is not known counts as hard:
// limits never open by mistake. SpecOf does not set the costs of contexts.
func SpecOf(rec ledger.Record) libvgpu.GrantSpec {
	mode, known := modes[rec.Mode]
	if !known {
		mode = libvgpu.ModeHard
	}
	spec := libvgpu.GrantSpec{JobID: rec.JobID, UID: rec.UID, GID: rec.GID, Created: rec.Created}
	for _, c := range rec.Placement.Cards {
		spec.Cards = append(spec.Cards, libvgpu.GrantCard{
			UUID: string(c.UUID), MemLimit: uint64(c.Memory), MemPhysical: uint64(c.Physical),
			Share: uint32(c.Share), Cores: uint32(c.Cores),
			Mode: mode, Priority: priorities[rec.Priority], Ceiling: uint32(rec.Ceiling),
			Engine: engines[rec.Request.Engine],
		})
	}
	return spec
}

// RecordOf reads a grant back into a record, for a ledger that was lost. Fields that a grant does
// not have stay empty: names, the request, display indexes.
// The cores of a file can be the ceiling of a soft job that is being held; they
// count as no more than the share then.
func RecordOf(spec libvgpu.GrantSpec) ledger.Record {
	rec := ledger.Record{
		JobID: spec.JobID, UID: spec.UID, GID: spec.GID, State: ledger.Granted, Restarts: ledger.UnknownRun,
		Created: spec.Created.UTC().Truncate(time.Microsecond), Mode: gpu.Hard, Priority: gpu.Normal,
	}
	for _, c := range spec.Cards {
		rec.Ceiling = gpu.Share(c.Ceiling)
		for mode, n := range modes {
			if n == c.Mode {
				rec.Mode = mode
			}
		}
		if c.Engine == libvgpu.EngineConcurrent {
			rec.Request.Engine = gpu.Concurrent
		}
		for priority, n := range priorities {
			if n == c.Priority {
				rec.Priority = priority
			}
		}
		rec.Placement.Cards = append(rec.Placement.Cards, place.CardShare{
			UUID: gpu.UUID(c.UUID), Share: gpu.Share(c.Share), Cores: gpu.Share(min(c.Cores, c.Share)), Memory: gpu.Bytes(c.MemLimit),
			Physical: gpu.Bytes(c.MemPhysical),
		})
	}
	return rec
}

// Create makes the folder of a granted job, with an empty cache, and opens its grant. It first
// removes an existing folder. environment are the variables of the job's tasks, as NAME=VALUE.
func (s *Store) Create(spec libvgpu.GrantSpec, environment []string) error {
	spec.Socket = s.layout.Socket
	var g *libvgpu.Grant
	err := s.makeDir(spec.JobID, spec.UID, func(dir string) error {
		err := libvgpu.CreateCache(filepath.Join(dir, cacheFile), spec, spec.UID, spec.GID)
		if err == nil && len(environment) > 0 {
			err = writeNew(filepath.Join(dir, environmentFile), strings.Join(environment, "\n"))
		}
		if err == nil {
			err = keepRoom(dir)
		}
		if err == nil {
			g, err = libvgpu.CreateGrant(filepath.Join(dir, grantFile), spec)
		}
		return err
	})
	if err != nil {
		if g != nil {
			_ = g.Close()
		}
		return fmt.Errorf("create grant of job %d: %w", spec.JobID, err)
	}
	s.put(spec.JobID, g, spec, true)
	return nil
}

// Refuse makes a folder that says why the job's request cannot be served.
func (s *Store) Refuse(jobID, uid uint32, reason string) error {
	err := s.makeDir(jobID, uid, func(dir string) error {
		return writeNew(filepath.Join(dir, refusedFile), strings.Join(strings.Fields(reason), " ")) // one line
	})
	if err != nil {
		return fmt.Errorf("refuse job %d: %w", jobID, err)
	}
	return nil
}

// Refused returns the reason in a job's folder, "" where there is none.
func (s *Store) Refused(jobID uint32) string {
	return readText(filepath.Join(s.Dir(jobID), refusedFile), mostMessages)
}

// Adopt opens the grant that a folder holds already, without touching its
// inode: tasks have it bound and mapped. It fails with [fs.ErrNotExist] when
// there is none, and when the file is not the grant of this record or is of a
// run of the job that has ended.
func (s *Store) Adopt(rec ledger.Record) error {
	g, err := libvgpu.OpenGrantRW(filepath.Join(s.Dir(rec.JobID), grantFile))
	if err != nil {
		return fmt.Errorf("adopt grant of job %d: %w", rec.JobID, err)
	}
	have, spec := g.Spec(), SpecOf(rec)
	if err = matches(have, spec); have.Revoked {
		err = errors.New("it is revoked")
	}
	cache := s.cacheOf(rec.JobID)
	if _, gone := os.Lstat(cache); err == nil && errors.Is(gone, fs.ErrNotExist) {
		err = libvgpu.CreateCache(cache, spec, rec.UID, rec.GID)
	}
	if err != nil {
		_ = g.Close()
		return fmt.Errorf("adopt grant of job %d: %w", rec.JobID, err)
	}
	for i, c := range have.Cards {
		spec.Cards[i].MemOverhead = c.MemOverhead
	}
	s.put(rec.JobID, g, spec, false)
	return nil
}

// matches compares a file with the ledger's record of the job.
func matches(have, want libvgpu.GrantSpec) error {
	if have.JobID != want.JobID || have.UID != want.UID || len(have.Cards) != len(want.Cards) {
		return fmt.Errorf("file of job %d, user %d, %d cards: want job %d, user %d, %d cards",
			have.JobID, have.UID, len(have.Cards), want.JobID, want.UID, len(want.Cards))
	}
	for i, w := range want.Cards {
		if h := have.Cards[i]; h.UUID != w.UUID || h.MemLimit != w.MemLimit || h.MemPhysical != w.MemPhysical || h.Share != w.Share || h.Mode != w.Mode || h.Ceiling != w.Ceiling {
			return fmt.Errorf("card %d of the file is %s with %s: want %s with %s",
				i, h.UUID, gpu.Bytes(h.MemLimit), w.UUID, gpu.Bytes(w.MemLimit))
		}
	}
	return nil
}

// makeDir fills a folder under a name of its own and then gives it the name of
// the job.
func (s *Store) makeDir(jobID, uid uint32, fill func(dir string) error) error {
	if _, err := s.Remove(jobID); err != nil {
		return err
	}
	name := newPrefix + fmt.Sprint(jobID)
	if _, err := s.removeDir(name); err != nil {
		return err
	}
	dir := filepath.Join(s.layout.Jobs, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	err := fill(dir)
	if err == nil {
		var listed bool
		if listed, err = openTo(dir, uid); err == nil && !listed && !s.saidACL.Swap(true) {
			s.log.Warn("filesystem has no access lists: job folders are mode 0711, so every user can read a grant whose job id is known",
				"path", s.layout.Jobs)
		}
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, s.Dir(jobID), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		_, _ = s.removeDir(name)
	}
	return err
}

// The kernel's form of a POSIX access list, posix_acl_xattr.h: a version, then
// entries of tag, permissions and id, little endian, sorted by tag.
const (
	aclXattr   = "system.posix_acl_access"
	aclVersion = 2

	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclMask     = 0x10
	aclOther    = 0x20

	aclNoID = 0xffffffff
)

// accessList gives the owner all rights, and one user the rights to read and enter. Other users
// have no rights.
func accessList(uid uint32) (list []byte) {
	list = binary.LittleEndian.AppendUint32(list, aclVersion)
	for _, e := range []struct {
		Tag, Perm uint16
		ID        uint32
	}{{aclUserObj, 7, aclNoID}, {aclUser, 5, uid}, {aclGroupObj, 0, aclNoID}, {aclMask, 5, aclNoID}, {aclOther, 0, aclNoID}} {
		list, _ = binary.Append(list, binary.LittleEndian, e) // of fixed size
	}
	return list
}

// openTo makes a folder readable for one user. If the filesystem has no access lists, all users may
// enter the folder but not list it: its files have modes of their own. It reports which of the two
// was done.
func openTo(dir string, uid uint32) (listed bool, err error) {
	err = setxattr(dir, aclXattr, accessList(uid), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, unix.Chmod(dir, 0o711)
	}
	return err == nil, err
}

// setxattr is a variable so that a test can be a filesystem without lists.
var setxattr = unix.Setxattr

// ReadEnvironment returns what the tasks of a job get; nil for nothing.
func (s *Store) ReadEnvironment(jobID uint32) []string {
	return readLines(filepath.Join(s.Dir(jobID), environmentFile), mostEnvironment)
}

// mostEnvironment is below what the plugin reads (spank/plugin/jobenv.c).
const mostEnvironment = 4096

// readText returns a file that gresd has written into a job's folder, up to so many
// bytes of it. For any other file, and for no file, it returns "". It follows no link, and no file
// can block a root process.
func readText(path string, most int64) string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// readLines returns the lines of a file like readText; nil for no file.
func readLines(path string, most int64) []string {
	text := readText(path, most)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

const (
	// messagesFile has lines for the job's user, the oldest first.
	messagesFile = "messages"
	mostMessages = 16 << 10 // bytes
	// keptMessages bytes are always allocated. A job can fill the file system with its cache, and
	// its user then still gets the messages.
	keptMessages = 4 << 10
)

// keepRoom makes the file of messages in a job's new folder, and allocates space for the first
// messages. If the space is not there, the grant goes on without it.
func keepRoom(dir string) error {
	f, err := makeFile(filepath.Join(dir, messagesFile), 0o444)
	if err != nil {
		return err
	}
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, keptMessages)
	return f.Close()
}

// Tell adds a line for the user of a job to the job's folder. It adds no line that is there already
// with any time, and no line beyond 16 KiB. It reports whether it added the line.
func (s *Store) Tell(jobID uint32, message string) (added bool, err error) {
	message = strings.Join(strings.Fields(message), " ")
	s.messages.Lock()
	defer s.messages.Unlock()
	// A folder is not made here: the job may have ended.
	f, err := os.OpenFile(filepath.Join(s.Dir(jobID), messagesFile), os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o444)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		defer f.Close()
		err = f.Chmod(0o444) // whatever the umask is
	}
	for _, line := range s.Messages(jobID) {
		if _, text, _ := strings.Cut(line, " "); text == message && err == nil {
			return false, nil
		}
	}
	line := time.Now().UTC().Format(time.RFC3339) + " " + message + "\n"
	if err == nil {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil && info.Size()+int64(len(line)) <= mostMessages {
			_, err = f.WriteString(line)
			added = err == nil
		}
	}
	if err != nil {
		err = fmt.Errorf("tell job %d: %w", jobID, err)
	}
	return added, err
}

// Messages returns the lines for the user of a job, each "TIME TEXT".
func (s *Store) Messages(jobID uint32) []string {
	return readLines(filepath.Join(s.Dir(jobID), messagesFile), mostMessages)
}
