// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// mostEnvironment is below what the plugin reads (spank/plugin/jobenv.c).
const mostEnvironment = 4096

// readText returns a file that gresd has written into a job's folder, up to so many
// bytes of it. What is there and is not such a file is "": a link is not followed, and
// nothing keeps a root process waiting.
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

// readLines are those of such a file; nil for none.
func readLines(path string, most int64) []string {
	text := readText(path, most)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
