// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// jupyter starts a notebook server, and a kernel in it by the API that the browser uses. What a
// kernel runs when it starts tells what it sees of the card.
const jupyter = `
export HOME=$PWD/home IPYTHONDIR=$PWD/home/ipython JUPYTER_RUNTIME_DIR=$PWD/home/runtime
mkdir -p $IPYTHONDIR/profile_default/startup
cat >$IPYTHONDIR/profile_default/startup/look.py <<'END'
import os, subprocess
out = os.environ["HOME"] + "/kernel"
with open(out + ".part", "w") as f:
    subprocess.run(["bash", "-c", """LOOK"""], stdout=f, stderr=f)
os.rename(out + ".part", out)
END
jupyter-server --no-browser --ip=127.0.0.1 --port=8888 --ServerApp.token=secret >server.log 2>&1 &
server=$!
python3 - <<'END' || cat server.log
import time, urllib.request
for _ in range(600):
    try:
        ask = urllib.request.Request("http://127.0.0.1:8888/api/kernels", b"{}", {"Authorization": "token secret"})
        urllib.request.urlopen(ask).read()
        break
    except OSError:
        time.sleep(0.1)
else:
    raise SystemExit("the server does not answer")
END
for i in $(seq 600); do [ ! -e $HOME/kernel ] || break; sleep 0.1; done
cat $HOME/kernel || cat server.log
kill $server
`

// A kernel of a notebook server has the share of the server's job, by salloc as docs/portals.md
// says, and by sbatch.
func TestNotebooksHaveTheShareOfTheirJob(t *testing.T) {
	if _, err := exec.LookPath("jupyter-server"); err != nil {
		t.Skip("no jupyter-server: tools/deps portals installs Debian's")
	}
	s := up(t, oneCard)
	script := strings.ReplaceAll(jupyter, "LOOK", cluster.LookScript)
	if got := look(t, s.completed(alice, s.submit(alice, "--gres=vgpu:20 --vgpu-mem=8G --vgpu-mode=soft", script))); got.Total != 8*gib {
		t.Errorf("by sbatch a kernel sees %+v, want 8 GiB", got)
	}
	r := s.As(alice, "salloc", "--gres=vgpu:20", "--vgpu-mem=8G", "--vgpu-mode=soft", "srun", "bash", "-c", "cd $(mktemp -d)\n"+script)
	if got := look(t, r.Out); r.Code != 0 || got.Total != 8*gib || got.Granted > 8*gib {
		t.Errorf("by salloc a kernel sees %+v, want 8 GiB: %s", got, r)
	}
}
