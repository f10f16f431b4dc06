// SPDX-License-Identifier: Apache-2.0

// Program language finds sentences that read like a translation in comments, documents and
// messages. It fails if a folder has a higher percentage of such sentences than limits.txt allows.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	limitsFile = "tests/language/limits.txt"
	limitsHead = `# Marked sentences / sentences of each folder: a change may lower a percentage, but not raise it.
# go run ./tests/language -update lowers them. A folder that is not listed may have 8 %, or one sentence.
`
)

// skipped are generated files, and files of other authors.
var skipped = regexp.MustCompile(`(^|/)(testdata|vendor)/|^tests/fuzz/corpus/|^docs/(coverage|benchmarks|platforms)\.md$`)

// count is the number of sentences, and the number of sentences with a marker.
type count struct{ marked, all int }

// above reports whether c has a higher percentage than limit.
func (c count) above(limit count) bool { return c.marked*limit.all > limit.marked*c.all }

// unlisted is the limit of a folder with c that limits.txt does not list.
func unlisted(c count) count {
	if c.marked == 1 {
		return c
	}
	return count{8, 100}
}

func main() {
	update := flag.Bool("update", false, "lower the limits to the present percentages")
	list := flag.String("list", "", "list all marked sentences below this `folder`")
	flag.Parse()
	files, err := readFiles()
	if err == nil && *list != "" {
		fmt.Println(strings.Join(markedIn(files, *list, true), "\n"))
	} else if err == nil {
		err = checkFolders(files, *update)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readFiles returns the sentences of each file of the checkout.
func readFiles() (map[string][]string, error) {
	out, err := exec.Command("git", "ls-files", "-coz", "--exclude-standard").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	files := map[string][]string{}
	for path := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		if skipped.MatchString(path) {
			continue
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not committed yet
		} else if err != nil {
			return nil, err
		}
		files[path] = readSentences(path, string(text))
	}
	return files, nil
}

// markedIn returns the marked sentences of a folder, and with below also of its folders.
func markedIn(files map[string][]string, folder string, below bool) (all []string) {
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if filepath.Dir(path) != folder && !(below && (folder == "." || strings.HasPrefix(path, folder+"/"))) {
			continue
		}
		for _, sentence := range files[path] {
			if names := findMarkers(sentence); names != nil {
				all = append(all, fmt.Sprintf("%s: %s   [%s]", path, sentence, strings.Join(names, ", ")))
			}
		}
	}
	return all
}

// checkFolders compares each folder with its limit. With update it lowers the limits.
func checkFolders(files map[string][]string, update bool) error {
	present := map[string]count{}
	for path, all := range files {
		c := present[filepath.Dir(path)]
		for _, sentence := range all {
			c.all++
			if findMarkers(sentence) != nil {
				c.marked++
			}
		}
		present[filepath.Dir(path)] = c
	}
	limits, err := readLimits()
	first := update && errors.Is(err, fs.ErrNotExist)
	if err != nil && !first {
		return err
	}
	lowered, bad := map[string]count{}, 0
	for _, folder := range slices.Sorted(maps.Keys(present)) {
		c := present[folder]
		limit, listed := limits[folder]
		if !listed {
			limit = unlisted(c)
		}
		switch {
		case c.all == 0:
		case first || !c.above(limit):
			lowered[folder] = c
		default:
			printMarked(files, folder, c, limit)
			bad++
			if listed {
				lowered[folder] = limit
			}
		}
	}
	if update {
		err = writeLimits(lowered)
	}
	if bad > 0 && err == nil {
		err = fmt.Errorf("%d of %d folders are above their percentage in %s: rewrite the sentences in plain English", bad, len(present), limitsFile)
	}
	return err
}

// printMarked prints the marked sentences of a folder that are newer than limits.txt, or else all.
func printMarked(files map[string][]string, folder string, c, limit count) {
	fmt.Printf("%s: %d of %d sentences have a marker: at most %d of %d allowed\n", folder, c.marked, c.all, limit.marked, limit.all)
	old := map[string][]string{}
	if base, err := exec.Command("git", "log", "-1", "--format=%H", "--", limitsFile).Output(); err == nil {
		for path := range files {
			if filepath.Dir(path) == folder {
				// A file that is new has no text there.
				text, _ := exec.Command("git", "show", strings.TrimSpace(string(base))+":"+path).Output()
				old[path] = readSentences(path, string(text))
			}
		}
	}
	before, now := markedIn(old, folder, false), markedIn(files, folder, false)
	if added := slices.DeleteFunc(slices.Clone(now), func(s string) bool { return slices.Contains(before, s) }); len(added) > 0 {
		now = added
	}
	for _, s := range now[:min(len(now), 20)] {
		fmt.Println("  " + s)
	}
	if len(now) > 20 {
		fmt.Printf("  and %d others: go run ./tests/language -list %s\n", len(now)-20, folder)
	}
}

func readLimits() (map[string]count, error) {
	text, err := os.ReadFile(limitsFile)
	limits := map[string]count{}
	for line := range strings.Lines(string(text)) {
		var c count
		var percent, folder string
		if _, err := fmt.Sscanf(line, "%s %% %d/%d %s", &percent, &c.marked, &c.all, &folder); err == nil && c.all > 0 {
			limits[folder] = c
		} else if !strings.HasPrefix(line, "#") {
			return nil, fmt.Errorf("%s: %q: expected a line such as %q", limitsFile, line, formatLimit("docs", count{8, 100}))
		}
	}
	return limits, err
}

func writeLimits(limits map[string]count) error {
	var text strings.Builder
	text.WriteString(limitsHead)
	for _, folder := range slices.Sorted(maps.Keys(limits)) {
		text.WriteString(formatLimit(folder, limits[folder]) + "\n")
	}
	return os.WriteFile(limitsFile, []byte(text.String()), 0o644)
}

func formatLimit(folder string, c count) string {
	return fmt.Sprintf("%.1f %% %d/%d %s", 100*float64(c.marked)/float64(c.all), c.marked, c.all, folder)
}
