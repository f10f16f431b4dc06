// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// messagesFile has lines for the job's user, the oldest first.
	messagesFile = "messages"
	mostMessages = 16 << 10 // bytes
	// keptMessages of these have room in any case: a job can fill the file system by its own
	// cache, and what it is then told is that it did something else besides.
	keptMessages = 4 << 10
)

// keepRoom makes the file of messages in a job's new folder, and room for the first of them
// where there is some: a grant is not refused for want of it.
func keepRoom(dir string) error {
	f, err := makeFile(filepath.Join(dir, messagesFile), 0o444)
	if err != nil {
		return err
	}
	_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, keptMessages)
	return f.Close()
}

// Tell adds a line for the user of a job to the job's folder. A line that is
// there already, whatever its time, is not added again, nor is one beyond 16
// KiB. It reports whether it was added.
func (s *Store) Tell(jobID uint32, message string) (bool, error) {
	message = strings.Join(strings.Fields(message), " ")
	s.messages.Lock()
	defer s.messages.Unlock()
	// A folder is not made here: the job may have ended.
	f, err := os.OpenFile(filepath.Join(s.Dir(jobID), messagesFile), os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o444)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("tell job %d: %w", jobID, err)
	}
	defer f.Close()
	if err := f.Chmod(0o444); err != nil { // whatever the umask is
		return false, fmt.Errorf("tell job %d: %w", jobID, err)
	}
	for _, line := range s.Messages(jobID) {
		if _, text, _ := strings.Cut(line, " "); text == message {
			return false, nil
		}
	}
	line := time.Now().UTC().Format(time.RFC3339) + " " + message + "\n"
	if info, err := f.Stat(); err != nil || info.Size()+int64(len(line)) > mostMessages {
		return false, err
	}
	if _, err := f.WriteString(line); err != nil {
		return false, fmt.Errorf("tell job %d: %w", jobID, err)
	}
	return true, nil
}

// Messages are the lines that a job was told, each "TIME TEXT".
func (s *Store) Messages(jobID uint32) []string {
	return readLines(filepath.Join(s.Dir(jobID), messagesFile), mostMessages)
}
