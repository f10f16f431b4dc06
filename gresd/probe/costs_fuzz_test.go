// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// FuzzCosts: what an earlier gresd has learned of contexts is read as it was written or
// not at all, and no cost is one that no card can have: it is charged to every process.
func FuzzCosts(f *testing.F) {
	for _, s := range []string{
		``, `null`, `{}`, `[]`, `{"580.1/NVIDIA H200":{"context_bytes":555745280,"uncounted_bytes":2097152,"idle":true}}`,
		`{"580.1/NVIDIA H200":{"context_bytes":18446744073709551615,"uncounted_bytes":2,"idle":true}}`, `{"580.1/NVIDIA H200":{"context_bytes":-1}}`,
		`{"a":{"context_bytes":1},"580.1/NVIDIA H200":{"context_bytes":7},"c":[]}`, `{"580.1/NVIDIA H200":{"idle":true}}`, `{"x":{}}{"y":{}}`,
	} {
		f.Add([]byte(s))
	}
	const driver, model = "580.1", "NVIDIA H200"
	path := filepath.Join(f.TempDir(), "costs.json")
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c := OpenCosts(path, driver, silent)
		for key, figure := range c.known.values {
			if figure.Total() < figure.Context || figure.Total() > 1024*gpu.GiB {
				t.Fatalf("%s: %+v", key, figure)
			}
		}
		if f := c.Of(model); f != c.known.values[driver+"/"+model] || c.Of("x/y") != c.known.values[driver+"/x/y"] {
			t.Fatalf("%+v of %+v", f, c.known.values)
		}
		if err := c.known.set("no such model", nil); err != nil {
			t.Fatalf("read, but cannot be written: %v", err)
		}
		if again := OpenCosts(path, driver, silent); !maps.Equal(again.known.values, c.known.values) {
			t.Fatalf("%+v became %+v", c.known.values, again.known.values)
		}
		if figure, err := readFigure(text); err == nil && figure.Total() < figure.Context {
			t.Fatalf("of a child: %+v", figure)
		}
	})
}
