// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"path/filepath"
	"testing"
)

// exported is the environment of a program with a limit of 8 GiB and a cache that its children share.
func exported(t *testing.T) []string {
	t.Helper()
	env, libdir, lib := card(t, oneCard)
	return append(env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH="+libdir, "CUDA_DEVICE_MEMORY_LIMIT=8G",
		"CUDA_DEVICE_MEMORY_SHARED_CACHE="+filepath.Join(t.TempDir(), "cache"))
}

// An import of an own export is a second reference to the same charge. So two rounds of 3 GiB fit into
// 8 GiB, for each kind of export and each order of releases.
func TestAnImportKeepsTheChargeOfItsMemory(t *testing.T) {
	for _, how := range []string{"own", "dup", "late", "fabric", "pool"} {
		t.Run(how, func(t *testing.T) {
			r, err := run(t, exported(t), "imports", how)
			if err != nil {
				t.Fatal(err)
			}
			if r["granted"] != 2.0 || r["error"] != 2.0 || r["used"] != 6144.0 {
				t.Errorf("%v; want 2 rounds, then error 2, with 6144 MiB in use", r)
			}
		})
	}
}

// The same by cuImportExternalMemory, whose import or mapped buffer keeps the memory.
func TestAnExternalImportKeepsTheChargeOfItsMemory(t *testing.T) {
	for _, how := range []string{"import", "buffer"} {
		t.Run(how, func(t *testing.T) {
			r, err := run(t, exported(t), "external", how)
			if err != nil {
				t.Fatal(err)
			}
			if r["granted"] != 2.0 || r["error"] != 2.0 || r["used"] != 6144.0 {
				t.Errorf("%v; want 2 rounds, then error 2, with 6144 MiB in use", r)
			}
		})
	}
}

// Memory of a process that has ended is the importer's to pay for.
func TestImportsOutliveTheirExporter(t *testing.T) {
	r, err := run(t, exported(t), "imports", "children")
	if err != nil {
		t.Fatal(err)
	}
	if r["granted"].(float64) > 2 || r["error"] != 2.0 || r["again"] != 2.0 {
		t.Errorf("%v; want no more than 2 rounds of 3 GiB, then error 2, also if it tries again", r)
	}
}

// The same by cuIpcOpenMemHandle: 3 GiB are imported, and 3 GiB more fit into 8 GiB.
func TestMemoryOpenedByIPCOutlivesItsExporter(t *testing.T) {
	r, err := run(t, exported(t), "imports", "ipc")
	if err != nil {
		t.Fatal(err)
	}
	if r["granted"] != 1.0 || r["error"] != 2.0 || r["with"] != r["before"] {
		t.Errorf("%v; want 1 allocation of 3 GiB, then error 2, and as much in use with the import as before", r)
	}
}

// While the exporter lives and pays, the importer does not.
func TestSharedMemoryIsChargedOnce(t *testing.T) {
	r, err := run(t, exported(t), "imports", "together")
	if err != nil {
		t.Fatal(err)
	}
	if r["error"] != 0.0 || r["with"] != r["before"] {
		t.Errorf("%v; want as much in use with the import as before", r)
	}
}

// The 4,097th export is noted as the first is.
func TestAnyNumberOfExportsIsFollowed(t *testing.T) {
	r, err := run(t, exported(t), "imports", "many")
	if err != nil {
		t.Fatal(err)
	}
	if r["taken"] != 3072.0 || r["freed"] != 0.0 {
		t.Errorf("in use when taken, and at the end: %v MiB; want 3072 and 0", r)
	}
}

// A number that another file of the same inode has now keeps nothing.
func TestAReusedDescriptorNumberKeepsNoMemory(t *testing.T) {
	r, err := run(t, exported(t), "imports", "reused")
	if err != nil {
		t.Fatal(err)
	}
	if r["same_inode"] != 1.0 || r["used"] != 0.0 {
		t.Errorf("%v; want the same inode, and nothing in use", r)
	}
}

// A number that another export has now keeps the memory of that export, and imports it.
func TestADescriptorNumberOfAnotherExport(t *testing.T) {
	r, err := run(t, exported(t), "imports", "renamed")
	if err != nil {
		t.Fatal(err)
	}
	if r["used"] != 2.0 || r["imported"] != 2.0 || r["after"] != 0.0 {
		t.Errorf("%v; want 2 MiB in use with the export, 2 with its import, and 0 at the end", r)
	}
}

// The import of an export whose number a smaller one had in between is not taken for one of the smaller.
func TestADescriptorNumberOfTwoExports(t *testing.T) {
	r, err := run(t, exported(t), "imports", "swapped")
	if err != nil {
		t.Fatal(err)
	}
	if r["used"] != 3074.0 {
		t.Errorf("%v; want 3074 MiB in use", r)
	}
}

// A descriptor in a socket keeps memory as one in this process does: it is charged until the socket
// is closed.
func TestADescriptorInASocketKeepsTheCharge(t *testing.T) {
	for _, how := range []string{"away", "range"} {
		t.Run(how, func(t *testing.T) {
			r, err := run(t, exported(t), "away", how)
			if err != nil {
				t.Fatal(err)
			}
			if r["granted"] != 2.0 || r["error"] != 2.0 || r["used"] != 6144.0 || r["after"] != 0.0 {
				t.Errorf("%v; want 2 rounds, then error 2, with 6144 MiB in use, and 0 at the end", r)
			}
		})
	}
}

// The same for the copy of a forked child.
func TestADescriptorInAChildKeepsTheCharge(t *testing.T) {
	r, err := run(t, exported(t), "away", "forked")
	if err != nil {
		t.Fatal(err)
	}
	if r["used"] != 3072.0 || r["after"] != 0.0 {
		t.Errorf("%v; want 3072 MiB in use, and 0 after the child has ended", r)
	}
}
