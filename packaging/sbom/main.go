// SPDX-License-Identifier: Apache-2.0

// sbom VERSION PROGRAM... prints the bill of materials of a release, CycloneDX in JSON: what
// Go says that the programs were built from, and what tools/web-vendor takes from npm. The
// parts in C have nothing of others in them. SOURCE_DATE_EPOCH is its time.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

type object map[string]any

func main() {
	text, err := bill(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "vgpu: sbom: %v\n", err)
		os.Exit(1)
	}
	os.Stdout.Write(append(text, '\n'))
}

func bill(args []string) ([]byte, error) {
	if len(args) < 2 {
		return nil, fmt.Errorf("usage: sbom VERSION PROGRAM")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	version, self := args[0], "slurm-vgpu"
	components := map[string]object{}
	needs := map[string][]string{}
	need := func(who, ref, name, version string, hashes ...object) {
		components[ref] = object{"type": "library", "bom-ref": ref, "name": name, "version": version, "purl": ref}
		if len(hashes) > 0 {
			components[ref]["hashes"] = hashes
		}
		needs[who] = append(needs[who], ref)
	}
	for _, path := range args[1:] {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return nil, err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		program := filepath.Base(path)
		goVersion := strings.TrimPrefix(info.GoVersion, "go")
		need(program, "pkg:golang/stdlib@"+goVersion, "stdlib", goVersion)
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			need(program, "pkg:golang/"+m.Path+"@"+m.Version, m.Path, m.Version)
		}
		sum := sha256.Sum256(content)
		components[program] = object{
			"type": "application", "bom-ref": program, "name": program, "version": version,
			"description": "as in the packages for " + setting(info, "GOARCH"),
			"hashes":      []object{hash("SHA-256", sum[:])},
		}
		needs[self] = append(needs[self], program)
	}

	vendor, err := os.ReadFile("tools/web-vendor")
	if err != nil {
		return nil, err
	}
	for _, m := range regexp.MustCompile(`(?m)^\t"(\S+) (\S+) sha512-(\S+) `).FindAllStringSubmatch(string(vendor), -1) {
		sum, err := base64.StdEncoding.DecodeString(m[3])
		if err != nil || len(sum) != 64 {
			return nil, fmt.Errorf("tools/web-vendor: %s: no sha512: %w", m[1], err)
		}
		need("vgpuctl", "pkg:npm/"+m[1]+"@"+m[2], m[1], m[2], hash("SHA-512", sum))
	}

	list, dependencies := []object{}, []object{}
	for _, ref := range slices.Sorted(maps.Keys(components)) {
		list = append(list, components[ref])
	}
	for _, who := range slices.Sorted(maps.Keys(needs)) {
		dependencies = append(dependencies, object{"ref": who, "dependsOn": needs[who]})
	}
	return json.MarshalIndent(object{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata": object{
			"timestamp": time.Unix(seconds, 0).UTC().Format(time.RFC3339),
			"component": object{
				"type": "application", "bom-ref": self, "name": self, "version": version,
				"purl": "pkg:github/slurm-vgpu/slurm-vgpu@v" + version, "licenses": []object{{"license": object{"id": "Apache-2.0"}}},
			},
		},
		"components": list, "dependencies": dependencies,
	}, "", "  ")
}

func hash(name string, sum []byte) object {
	return object{"alg": name, "content": hex.EncodeToString(sum)}
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
