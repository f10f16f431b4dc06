// SPDX-License-Identifier: Apache-2.0

package lua

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// typedOptions are those of the SPANK plugin, in the order of submit_loop.lua.
var typedOptions = request.Names()[1:]

// The cards of both sites, in MiB, and what is written beside the script.
var cardsMiB = map[string]gpu.Bytes{"": 81920, "h200": 143771, "a100": 40960}

const cardsFile = `return {units = 100, default = 81920, cards = {h200 = 143771, a100 = 40960}, placement = "%s"}`

// FuzzSubmit: job_submit.lua, in a Lua of its own, takes and refuses what Go's grammar of
// requests does. A job that it takes holds as many shards as Go counts for it, and what
// it leaves in the comment is read in Go as the request that the user made.
func FuzzSubmit(f *testing.F) {
	sites := [...]string{"slurm", "gresd"}
	s := startSites(f, sites[:]...)
	add := func(gres, comment string, options ...string) {
		all := [7]string{}
		copy(all[:], options)
		for site := range sites {
			f.Add(site == 1, gres, comment, all[0], all[1], all[2], all[3], all[4], all[5], all[6])
		}
	}
	add("gres:vgpu:30", "")
	add("gres/vgpu:h200=30,cpu=2", "night run", "40G", "10", "1", "soft:80", "low", "spread", "time")
	add("gres:vgpu:a100:400", "a vgpu(mem=50%,cores=3) b", "", "", "4", "hard")
	add("gres:shard:50", "vgpu(share=30,mem=50%,policy=exclusive)")
	add("shard", "vgpu( mem = 8GiB ,mode=soft:100) vgpu(share=200)", "", "101")
	add("gres:gpu:2", "vgpu(share=200)", "10G")
	add("gres:gpu:vgpu:30,gres:vgpu:1,mps:7", "my_vgpu(x) vgpu(mem=1,mem=2", "18446744073709551615", "", "", "", "", "exclusive", "mps")
	add("gres:vgpu:1", "vgpu(mem=820M)") // a little more than a hundredth
	add("gres:vgpu:1", "vgpu(mem=8G\u00a0,\vcores=1\u0085)")
	add(",,vgpu::30,", "vgpu()vgpu(,)-vgpu(", "0", "010", "17", "soft:0", "x", "y", "z")
	table, err := os.ReadFile("../plugin/testdata/options.txt")
	if err != nil {
		f.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		columns := strings.Split(strings.TrimSpace(line), "\t")
		for i, name := range typedOptions {
			if len(columns) == 3 && columns[0] == name {
				options := make([]string, len(typedOptions))
				options[i] = strings.ReplaceAll(columns[1], "_", " ")
				add("gres:vgpu:100", "", options...)
				add("gres:vgpu:100", "vgpu("+name+"="+options[i]+")")
			}
		}
	}
	f.Fuzz(func(t *testing.T, gresd bool, gres, comment, mem, cores, cards, mode, priority, policy, engine string) {
		j := job{site: sites[0], gres: gres, comment: comment, typed: request.Options{}}
		if gresd {
			j.site = sites[1]
		}
		for i, value := range []string{mem, cores, cards, mode, priority, policy, engine} {
			if value != "" {
				j.typed[typedOptions[i]] = value
			}
		}
		if strings.ContainsRune(gres+comment+strings.Join([]string{mem, cores, cards, mode, priority, policy, engine}, ""), 0) {
			t.Skip("no text of slurmctld has a zero byte in it")
		}
		checkJob(t, s, j)
	})
}

// job is what a user submits.
type job struct {
	site, gres, comment string
	typed               request.Options
}

// taken is what must come of it.
type taken struct {
	gres    string
	words   request.Options // of the comment
	request request.Request // zero: of a job that has no share
}

func checkJob(t *testing.T, s *sites, j job) {
	got := s.submit(t, j)
	want, why := judge(j)
	for _, a := range []answer{got.submit, got.modify} {
		if a.logged != "" {
			t.Fatalf("%+v: the script fails: %s", j, a.logged)
		}
		if line := a.said; (a.status != "0") != (line != "") || len(line) > 512 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("%+v: status %s, line for the user %q", j, a.status, line)
		}
	}
	if why == notJudged {
		return
	}
	if (why == "") != (got.submit.status == "0") {
		t.Fatalf("%+v: Lua says %q, Go %q", j, got.submit.said, why)
	}
	if strings.HasPrefix(why, "--") && isPlain(j) && got.submit.said != "vgpu: "+why {
		t.Fatalf("%+v: Lua says %q, Go %q", j, got.submit.said, "vgpu: "+why)
	}
	if why != "" {
		return
	}
	if got.submit.gres != want.gres {
		t.Fatalf("%+v: Lua writes %q, want %q", j, got.submit.gres, want.gres)
	}
	words, err := request.ParseComment(got.submit.comment)
	if err != nil || !maps.Equal(words, want.words) {
		t.Fatalf("%+v: comment %q is read as %q, %v; want %q", j, got.submit.comment, words, err, want.words)
	}
	if want.request == (request.Request{}) {
		return
	}
	all := j.typed.Merge(words)
	if _, given := all["share"]; !given {
		item := shareOf(got.submit.gres)
		all["share"] = item[strings.LastIndexAny(item, ":=")+1:]
	}
	if r, err := request.Parse(all); err != nil || r != want.request {
		t.Fatalf("%+v: on the node it is %+v, %v; want %+v", j, r, err, want.request)
	}
	// The same comment once more changes nothing.
	if got.modify.status != "0" || got.modify.comment != got.submit.comment {
		t.Fatalf("%+v: comment %q becomes %q when it is given again: %s", j, got.submit.comment, got.modify.comment, got.modify.said)
	}
}

// isPlain tells texts of which both sides show the same.
func isPlain(j job) bool {
	text := j.gres + j.comment + strings.Join(slices.Collect(maps.Values(j.typed)), "")
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// notJudged is the verdict on whole GPUs with options: no request of this grammar.
const notJudged = "not judged"

var tokenStart = regexp.MustCompile(`(?:^|[^A-Za-z0-9_-])vgpu\(`)

// wordsOf reads all tokens of a comment: cli_filter.lua adds one of its own, with the
// share, beside that of the user.
func wordsOf(comment string) (request.Options, error) {
	all := request.Options{}
	for {
		at := tokenStart.FindStringIndex(comment)
		if at == nil {
			return all, nil
		}
		token := comment[at[1]-len("vgpu("):]
		end := strings.IndexByte(token, ')') + 1
		if end == 0 {
			end = len(token)
		}
		words, err := request.ParseComment(token[:end])
		if err != nil {
			return nil, err
		}
		for name, value := range words {
			if _, twice := all[name]; twice && name != "share" {
				return nil, fmt.Errorf("%s is there twice", name) // of two tokens Go takes none
			}
			all[name] = value
		}
		comment = token[end:]
	}
}

// item is one word of a list of TRES.
type item struct{ prefix, name, cardType, sign, count string }

func itemOf(word string) item {
	var i item
	for _, prefix := range []string{"gres:", "gres/"} {
		if rest, cut := strings.CutPrefix(word, prefix); cut {
			i.prefix, word = prefix, rest
			break
		}
	}
	at := strings.IndexAny(word, ":=")
	if at < 0 {
		i.name = word
		return i
	}
	i.name, i.sign, i.count = word[:at], word[at:at+1], word[at+1:]
	if last := strings.LastIndexAny(word, ":="); i.sign == ":" && last > at+1 {
		i.cardType, i.sign, i.count = word[at+1:last], word[last:last+1], word[last+1:]
	}
	return i
}

func isShare(word string) bool { return itemOf(word).name == "vgpu" || itemOf(word).name == "shard" }

// shareOf is the word of a list that has the share.
func shareOf(list string) string {
	for word := range strings.SplitSeq(list, ",") {
		if isShare(word) {
			return word
		}
	}
	return ""
}

// judge says what must come of a job, by Go's grammar; else why it is refused. What
// begins with an option is the line for the user, the rest is known to Lua alone.
func judge(j job) (want taken, why string) {
	words, err := wordsOf(j.comment)
	if err != nil {
		return want, err.Error()
	}
	options := request.Options{}
	for _, set := range []request.Options{words, j.typed} {
		for _, name := range typedOptions { // share is the script's own word: see judgeShare
			value, given := set[name]
			if !given {
				continue
			}
			if _, err := request.Parse(request.Options{name: value}); err != nil {
				return want, err.Error()
			}
			options[name] = value
		}
	}
	list := strings.FieldsFunc(j.gres, func(r rune) bool { return r == ',' })
	share, others := -1, false
	for i, word := range list {
		switch it := itemOf(word); {
		case it.cardType == "vgpu" && (it.name == "gpu" || isShare(word)), it.name == "gpu" && it.cardType == "" && it.count == "vgpu":
			return want, "a share is no type of GPU"
		case it.name == "gpu" || it.name == "mps":
			others = true
		case isShare(word) && share >= 0:
			return want, "two shares"
		case isShare(word):
			share = i
		}
	}
	switch {
	case share >= 0 && others:
		return want, "shares and GPUs"
	case share < 0 && others:
		return want, notJudged
	case share < 0 && len(options) > 0:
		return want, "no share"
	case share < 0:
		return taken{gres: j.gres}, ""
	}
	want, why = judgeShare(j.site, itemOf(list[share]), words, options)
	list[share] = want.gres
	want.gres = strings.Join(list, ",")
	return want, why
}

// judgeShare is about the word that has the share; gres is that word alone.
func judgeShare(site string, it item, words, options request.Options) (want taken, why string) {
	if it.sign == "" {
		it.sign = ":"
		if it.name == "shard" {
			it.count = "1"
		}
	}
	read := request.Options{"share": it.count}
	if cards, given := options["cards"]; given {
		read["cards"] = cards
	}
	var mistake *request.Error
	if _, err := request.Parse(read); errors.As(err, &mistake) && mistake.Option == "--gres=vgpu" {
		mistake.Option = "--gres=" + it.name
		if it.cardType != "" {
			mistake.Option += ":" + it.cardType
		}
		return want, mistake.Error()
	}
	count, err := strconv.ParseUint(it.count, 10, 16)
	if err != nil {
		return want, err.Error()
	}
	asked, share := gpu.Share(count), gpu.Share(count)
	// What was raised for memory or cores, by vgpu-srun.
	if marked, ok := gpu.ParseCount(words["share"], 100); ok && it.name == "shard" && asked <= gpu.FullCard {
		share = min(share, gpu.Share(marked))
	}
	cards, _ := strconv.Atoi(options["cards"])
	whole := int(share+gpu.FullCard-1) / int(gpu.FullCard)
	divides := cards > 1 && int(share)%cards == 0 && cards > whole
	if site == "slurm" && (share > gpu.FullCard && share%gpu.FullCard != 0 || divides) {
		return want, partOfCards(cards, max(cards, whole))
	}
	options["share"] = fmt.Sprint(share)
	r, err := request.Parse(options)
	if err != nil {
		return want, err.Error()
	}
	if r.Memory.Bytes > 0 && r.Memory.Bytes < gpu.MiB {
		return want, "less memory than anything needs"
	}
	memory, known := cardsMiB[it.cardType]
	if !known {
		memory = cardsMiB[""]
	}
	each := r.DominantOnCard(memory * gpu.MiB)
	if each > gpu.FullCard {
		return want, "more memory than a card has"
	}
	name, n := "shard", max(asked, each*gpu.Share(r.Cards))
	switch {
	case site == "gresd":
		name = "vgpu"
	case share > gpu.FullCard:
		name, n = "gpu", share/gpu.FullCard
	}
	want.gres = it.prefix + name
	if it.cardType != "" {
		want.gres += ":" + it.cardType
	}
	want.gres += it.sign + fmt.Sprint(n)
	want.words, want.request = words, r
	delete(words, "share")
	if name != "shard" || share != n {
		words["share"] = fmt.Sprint(share)
	}
	return want, ""
}

// partOfCards is what job_submit.lua says where slurmctld places: its shards of one job
// are on one card.
func partOfCards(given, enough int) string {
	return fmt.Sprintf(`--vgpu-cards: "%d": want whole cards, because here a share of less than a card is always on one card, for example --gres=vgpu:%d`,
		given, enough*int(gpu.FullCard))
}

// sites is a Lua that answers for some sites.
type sites struct {
	names []string
	in    io.Writer
	out   *bufio.Reader
	kill  func()
}

// answer is what the script made of one job.
type answer struct{ status, said, logged, gres, comment string }

type answers struct{ submit, modify answer }

// startSites runs job_submit.lua with a table of cards for each way of placement.
func startSites(f testing.TB, placements ...string) *sites {
	f.Helper()
	// Where nothing is installed a bundle brings it.
	lua := os.Getenv("VGPU_LUA")
	for _, name := range []string{"lua5.3", "lua5.4", "lua", "lua5.2", "lua5.1"} {
		if path, err := exec.LookPath(name); err == nil && lua == "" {
			lua = path
		}
	}
	if lua == "" {
		f.Fatal("no lua: apt-get install lua5.3")
	}
	script, err := os.ReadFile("../../etc/slurm/job_submit.lua")
	if err != nil {
		f.Fatal(err)
	}
	args := []string{"testdata/submit_loop.lua"}
	for _, placement := range placements {
		folder := f.TempDir()
		for name, text := range map[string]string{"job_submit.lua": string(script), "vgpu_cards.lua": fmt.Sprintf(cardsFile, placement)} {
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				f.Fatal(err)
			}
		}
		args = append(args, folder)
	}
	cmd := exec.Command(lua, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		f.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &sites{names: placements, in: in, out: bufio.NewReader(out), kill: func() { _ = cmd.Process.Kill() }}
}

// submit has the job judged by the script.
func (s *sites) submit(t *testing.T, j job) answers {
	t.Helper()
	timer := time.AfterFunc(10*time.Second, s.kill)
	defer timer.Stop()
	site := 1
	for s.names[site-1] != j.site {
		site++
	}
	head, body := "1 "+strconv.Itoa(len(j.gres))+" "+strconv.Itoa(len(j.comment)), strconv.Itoa(site)+j.gres+j.comment
	for _, name := range typedOptions {
		if value, given := j.typed[name]; given {
			head, body = head+" "+strconv.Itoa(len(value)), body+value
		} else {
			head += " -1"
		}
	}
	if _, err := io.WriteString(s.in, head+"\n"+body); err != nil {
		t.Fatalf("%+v: %v", j, err)
	}
	line, err := s.out.ReadString('\n')
	if err != nil {
		t.Fatalf("%+v: no answer: %v", j, err)
	}
	var fields []string
	for _, word := range strings.Fields(line) {
		n, err := strconv.Atoi(word)
		text := make([]byte, max(n, 0))
		if err == nil {
			_, err = io.ReadFull(s.out, text)
		}
		if err != nil {
			t.Fatalf("%+v: answer %q: %v", j, line, err)
		}
		fields = append(fields, string(text))
	}
	read := func(f []string) answer { return answer{f[0], f[1], f[2], f[3], f[4]} }
	return answers{read(fields[:5]), read(fields[5:])}
}
