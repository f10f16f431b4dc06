/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rm_abi.h - what the kernel driver's resource manager is asked by ioctl, as far as this library
 * reads it.
 *
 * From NVIDIA's open kernel modules (nv_escape.h, nv-ioctl.h, nvos.h, cl0040.h, cl0080.h, cl2080.h,
 * cla06c.h, ctrl0000gpu.h, ctrl0000unix.h, ctrl2080fb.h, ctrla06c.h, nvstatuscodes.h), the same in
 * 535.54.03, 580.126.20 and 595.45.04. Seen at work: 580.159.04 (H100, H200), as an ordinary user.
 */
#ifndef VGPU_DRIVER_RM_ABI_H
#define VGPU_DRIVER_RM_ABI_H

#include <stdint.h>

/* The type of the ioctls, and their numbers. */
#define RM_TYPE 'F'
#define RM_FREE 0x29
#define RM_CONTROL 0x2A
#define RM_ALLOC 0x2B
#define RM_VID_HEAP 0x4A
#define RM_XFER 0xD3 /* another one, in struct rm_xfer */
#define RM_DMABUF 0xD9

struct rm_alloc { /* NVOS64, and its older, shorter form NVOS21 */
	uint32_t root, parent, object, cls;
	uint64_t params;
	union {
		struct {
			uint64_t rights;
			uint32_t params_size, flags, status, pad;
		} v64;
		struct {
			uint32_t params_size, status;
		} v21;
	};
};
#define ALLOC_V21_SIZE 32

struct rm_control { /* NVOS54 */
	uint32_t client, object, cmd, flags;
	uint64_t params;
	uint32_t params_size, status;
};

struct rm_free { /* NVOS00 */
	uint32_t root, parent, object, status;
};

/* NVOS32. Of its functions HW_ALLOC (19) and ALLOC_OS_DESCRIPTOR (27) take no memory of the card:
 * page kinds, and memory of the host. */
struct rm_vid_heap {
	uint32_t root, parent, function, va_space;
	int16_t ivc;
	uint16_t pad;
	uint32_t status;
	uint64_t total, free;
	uint32_t owner, memory, type, flags;
	union {
		struct {
			uint32_t attr, rest[7];
			uint64_t size; /* in and out: as it was rounded */
		} sized;
		struct {
			uint32_t attr, rest[5];
			uint64_t size; /* the same */
		} range;
		struct {
			uint32_t height;
			int32_t pitch;
			uint32_t attr, rest[5];
			uint64_t size; /* out */
		} tiled;
		struct {
			uint32_t attr, pad;
			uint64_t offset, size, base; /* size: of the largest piece that is free */
		} info;
		uint64_t whole[16];
	};
};
#define VID_HEAP_ALLOC_SIZE 2
#define VID_HEAP_FREE 3
#define VID_HEAP_INFO 5 /* total and free, of what is below parent */
#define VID_HEAP_ALLOC_TILED 6
#define VID_HEAP_ALLOC_SIZE_RANGE 14

/* nv_ioctl_export_to_dma_buf_fd_t, as far as it is the same before driver 570 and from it on; then
 * follow the names of the objects. */
struct rm_dmabuf {
	int32_t fd;
	uint32_t client, most, n, index, pad;
	uint64_t bytes;
};
#define DMABUF_MOST 128u
#define DMABUF_OLD_SIZE 2600 /* 570 has two bytes more before the names; the status is in both 8 */
#define DMABUF_SIZE 2608     /* bytes before the end */

struct rm_xfer { /* nv_ioctl_xfer_t */
	uint32_t nr, size;
	uint64_t arg;
};

_Static_assert(sizeof(struct rm_alloc) == 48, "NVOS64_PARAMETERS");
_Static_assert(sizeof(struct rm_control) == 32, "NVOS54_PARAMETERS");
_Static_assert(sizeof(struct rm_free) == 16, "NVOS00_PARAMETERS");
_Static_assert(sizeof(struct rm_vid_heap) == 184, "NVOS32_PARAMETERS");
_Static_assert(__builtin_offsetof(struct rm_vid_heap, sized.size) == 88, "AllocSize.size");
_Static_assert(__builtin_offsetof(struct rm_vid_heap, range.size) == 80, "AllocSizeRange.size");
_Static_assert(__builtin_offsetof(struct rm_vid_heap, tiled.size) == 88, "AllocTiled….size");
_Static_assert(__builtin_offsetof(struct rm_vid_heap, info.size) == 72, "Info.size");
_Static_assert(sizeof(struct rm_xfer) == 16, "nv_ioctl_xfer_t");

/* Classes. Of those that an ordinary user may allocate only LOCAL_USER takes memory of the card
 * (resource_list.h); its size is what the card counts for the process (gpu_rmapi.c). By the older
 * number 0x27 OpenGL and Vulkan ask for one of them as large as the card: that takes nothing, and
 * answers how large that is (rmapi_deprecated_allocmemory.c). */
#define CLASS_LOCAL_USER 0x40u
#define CLASS_DEVICE 0x80u
#define CLASS_SUBDEVICE 0x2080u
#define CLASS_CHANNEL_GROUP 0xA06Cu
#define IS_CHANNEL(cls) (((cls) & 0xFFu) == 0x6F) /* of every generation: 0x906F to 0xCA6F */

struct rm_memory_params { /* NV_MEMORY_ALLOCATION_PARAMS */
	uint32_t owner, type, flags, width, height;
	int32_t pitch;
	uint32_t attr, attr2, format, compression, zcull, pad;
	uint64_t range_low, range_high, size; /* in and out: as it was rounded */
	uint64_t rest[7];
};
_Static_assert(sizeof(struct rm_memory_params) == 128, "NV_MEMORY_ALLOCATION_PARAMS");

#define ATTR_LOCATION(attr) ((attr) >> 25 & 3)
#define LOCATION_VIDMEM 0u
#define FLAG_VIRTUAL 0x00080000u /* addresses alone */

/* The parameters of a device begin with its number (NV_MAX_DEVICES). */
#define MAX_DEVICES 32

/* Controls. All are flagged non-privileged. */
#define CMD_UUID_INFO 0x274u          /* of a client */
#define CMD_EXPORT_TO_FD 0x3D05u      /* of a client */
#define CMD_EXPORT_ALL_TO_FD 0x3D0Bu  /* of a client */
#define CMD_FB_INFO 0x20801301u       /* of a subdevice */
#define CMD_FB_INFO_V2 0x20801303u    /* of a subdevice */
#define CMD_SET_TIMESLICE 0xA06C0103u /* of a channel group: one u64 of microseconds */
#define CMD_GET_TIMESLICE 0xA06C0104u

struct rm_uuid_info { /* flags: 0 says that the UUID is text (seen at work: 580.159.04, H100) */
	char uuid[256];
	uint32_t flags, gpu, device, subdevice;
};

struct rm_export {
	uint32_t type, device, parent, object;
	int32_t fd;
	uint32_t flags;
};
#define EXPORT_OBJECT 1u
#define EXPORT_EMPTY_FD 1u

#define EXPORT_MOST 512u
struct rm_export_all { /* several, perhaps beside those of other calls */
	int32_t fd;
	uint32_t device;
	uint16_t most;
	uint8_t metadata[64];
	uint32_t object[EXPORT_MOST];
	uint16_t n, index;
};
_Static_assert(sizeof(struct rm_export_all) == 2128, "EXPORT_OBJECTS_TO_FD_PARAMS");

struct rm_fb_entry {
	uint32_t index, kib;
};
struct rm_fb_info {
	uint32_t n, pad;
	uint64_t list;
};
#define FB_INFO_MAX 128u
struct rm_fb_info_v2 {
	uint32_t n;
	struct rm_fb_entry entry[FB_INFO_MAX];
};
#define FB_RAM_SIZE 0x7u
#define FB_TOTAL_RAM_SIZE 0x8u
#define FB_HEAP_SIZE 0x9u
#define FB_LARGEST_FREE 0x12u
#define FB_HEAP_FREE 0x16u
#define FB_USABLE_RAM_SIZE 0x20u

/* Statuses. The first is what a full card answers. */
#define STATUS_NO_MEMORY 0x51u
#define STATUS_INVALID_CLIENT 0x23u
#define STATUS_INVALID_OBJECT_HANDLE 0x33u
#define STATUS_OBJECT_NOT_FOUND 0x57u

#endif
